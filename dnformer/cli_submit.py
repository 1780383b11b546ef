"""The commands `submit`, `status`, `logs`, `stop` and `list`: jobs of a Ray cluster."""

import inspect
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from dnformer import config as configs
from dnformer import parsing
from dnformer.cli_common import Ended, Json, read_text, say, waiting
from dnformer.cli_ingest import ingest, setting_paths
from dnformer.cli_predict import predict, prediction_values
from dnformer.cli_train import train
from dnformer.cli_tune import tune
from dnformer.errors import TrainError
from dnformer.submit.cluster import address_of, check_versions, reach
from dnformer.submit.job import Job, JobState, folder_job, run_job

if TYPE_CHECKING:
    from dnformer.submit.jobs import Jobs

Address = Annotated[
    str | None,
    typer.Option(
        help="Dashboard of the cluster's head, http://HOST:8265 (RAY_API_SERVER_ADDRESS)."
    ),
]
Follow = Annotated[bool, typer.Option("--follow", help="Show what the job says until it ends.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Of the job, as dnformer list shows it.")]

submit = typer.Typer(help="Run a command as a job of a Ray cluster.", no_args_is_help=True)


def _own(address: Address = None, follow: Follow = False) -> None:
    """What `submit` takes beside the options of the command itself."""


def _as_job(
    command: Callable[..., None], describe: Callable[[dict[str, Any]], Job]
) -> Callable[..., None]:
    """`command` as one with the same options that submits it."""

    def submitted(*, address: str | None, follow: bool, as_json: bool, **options: Any) -> None:
        # a mistake in the config needs no cluster to be found
        job, named = describe(options), address_of(address)
        _submit(job, named, follow=follow, as_json=as_json)

    parameters = [
        *inspect.signature(command, eval_str=True).parameters.values(),
        *inspect.signature(_own, eval_str=True).parameters.values(),
    ]
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    # typer reads the options there
    submitted.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    submitted.__doc__ = f"{inspect.getdoc(command)} As a job of a Ray cluster."
    return submitted


def _run(
    name: Literal["train", "tune"], command: Callable[..., None], options: dict[str, Any]
) -> Job:
    config = configs.load_config(options.pop("config"), options.pop("settings") or [])
    known = inspect.signature(command).parameters
    words: list[str] = []
    for option, value in options.items():
        if value != known[option].default:
            words += [f"--{option}"] if value is True else [f"--{option}", str(value)]
    return run_job(name, config, words)


def _ingest(options: dict[str, Any]) -> Job:
    with waiting("loading"):
        from dnformer.data.ingest.run import IngestConfig

    file = options["config"]
    values = parsing.read_yaml(read_text(file), name=file) if file else {}
    for path, value in setting_paths(options):
        if value is not None:
            values = parsing.put(values, path, value)
    values = parsing.override(values, options["settings"] or [])
    config = parsing.parse(IngestConfig, values, name="ingest")
    return folder_job("ingest", config, config.out)


def _predict(options: dict[str, Any]) -> Job:
    from dnformer.prediction.options import PredictConfig

    config = parsing.parse(PredictConfig, prediction_values(options), name="predict")
    return folder_job("predict", config, config.out)


submit.command("train")(_as_job(train, partial(_run, "train", train)))
submit.command("tune")(_as_job(tune, partial(_run, "tune", tune)))
submit.command("ingest")(_as_job(ingest, _ingest))
submit.command("predict")(_as_job(predict, _predict))


def _submit(job: Job, address: str, *, follow: bool, as_json: bool) -> None:
    jobs = _reached(address, versions=True)
    for line in _notes(job):
        say(line)
    state, attached = jobs.submit(job, say)
    if attached:
        anew = "" if state.live else "; --fresh starts it over"
        say(f"{state.id} is there already: {state.status}{anew}")
    else:
        say(f"submitted {state.id}")
    if follow:
        state = _follow(jobs, state.id, quiet=as_json)
    if as_json:
        print(json.dumps(_facts(state) | {"attached": attached}))
    elif not follow:
        _show(state)
        say(f"  dnformer logs {state.id} --follow --address {address}")
        if state.live:
            say(f"  dnformer stop {state.id} --address {address}")
    # one that was there may have ended long ago; to see that is no failure
    if follow or not attached:
        _end_as(state)


def _notes(job: Job) -> list[str]:
    """What a user should know of a job before it runs elsewhere."""
    notes = []
    local = sorted({value for _, value in job.places() if value.startswith(("/", "file:"))})
    if local:
        notes.append(
            f"on the cluster these paths must be the same, on all nodes: {', '.join(local)}"
        )
    if job.command == "train" and job.config["train"]["workers"] == 0:
        notes.append("train.workers is 0: it will run on the head alone; set train.workers to "
                     "use the cluster")  # fmt: skip
    if job.command == "predict" and job.config["workers"] == 0:
        notes.append("it will run on the head alone; --workers uses the cluster")
    engine = (job.config.get("engine") or {}).get("name")
    if job.command == "ingest" and "table" in job.config and engine != "ray":
        notes.append("it will run on the head alone; --engine ray uses the cluster")
    return notes


def _reached(address: str, *, versions: bool = False) -> "Jobs":
    with waiting(f"asking {address}"):
        cluster = reach(address)
        if versions:
            check_versions(cluster)
        from dnformer.submit.jobs import Jobs

        return Jobs(cluster)


def _follow(jobs: "Jobs", id: str, *, quiet: bool) -> JobState:
    """The last state of a job, after all that it said was shown."""
    sink = sys.stderr if quiet else sys.stdout

    def write(text: str) -> None:
        sink.write(text)
        sink.flush()

    try:
        return jobs.follow(id, write)
    except KeyboardInterrupt:
        raise Ended(
            f"\nno longer followed, but {id} goes on; to stop it: dnformer stop {id} --address "
            f"{jobs.cluster.address}",
            130,
        ) from None


def _end_as(state: JobState) -> None:
    """Fails as a job did."""
    if state.status == "failed":
        raise TrainError(f"{state.id} failed: {state.message}")
    if state.status == "stopped":
        raise TrainError(f"{state.id} was stopped; the same submit goes on from its last state")


def status(id: Id, address: Address = None, as_json: Json = False) -> None:
    """Show how a job of a cluster is doing."""
    state = _reached(address_of(address)).state(id)
    if as_json:
        print(json.dumps(_facts(state)))
    else:
        _show(state)


def logs(id: Id, follow: Follow = False, address: Address = None, as_json: Json = False) -> None:
    """Show what a job of a cluster has said."""
    jobs = _reached(address_of(address))
    if as_json:
        state = _follow(jobs, id, quiet=True) if follow else jobs.state(id)
        print(json.dumps(_facts(state) | {"logs": jobs.logs(id)}))
    elif follow:
        state = _follow(jobs, id, quiet=False)
    else:
        sys.stdout.write(jobs.logs(id))
    if follow:
        _end_as(state)


def stop(id: Id, address: Address = None, as_json: Json = False) -> None:
    """Stop a job of a cluster; a run saves its state first."""
    jobs = _reached(address_of(address))
    with waiting(f"stopping {id}"):
        state, told = jobs.stop(id)
    if as_json:
        print(json.dumps(_facts(state) | {"told": told}))
        return
    if not told:
        say(f"{id} had ended already")
    _show(state)


def list_jobs(address: Address = None, as_json: Json = False) -> None:
    """List the jobs that were submitted to a cluster, the newest first."""
    states = _reached(address_of(address)).all()
    if as_json:
        print(json.dumps({"jobs": [_facts(state) for state in states]}))
        return
    if states:
        _print_table(states)
    else:
        say("no job was submitted there")


def _print_table(states: Sequence[JobState]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("id", "name", "status", "since", "duration"):
        table.add_column(name, no_wrap=True)
    for state in states:
        table.add_row(state.id, state.name, state.status, _since(state), _duration(state))
    console = Console()
    # an id that is cut is of no use
    console.width = max(console.width, 150)
    console.print(table)


def _facts(state: JobState) -> dict[str, Any]:
    """For programs."""
    given = ("id", "name", "command", "target", "status", "started", "ended", "exit_code")
    return {key: getattr(state, key) for key in given} | {
        "seconds": _seconds(state),
        "message": state.message or None,
    }


def _show(state: JobState) -> None:
    print(f"{state.id}: {state.status}, since {_since(state)}, {_duration(state)}")
    if state.target:
        print(f"  {state.command} of {state.target}")
    if state.message:
        print(f"  {state.message}")


def _seconds(state: JobState) -> float | None:
    if state.started is None:
        return None
    # the head's clock may be ahead of ours
    return max((time.time() if state.ended is None else state.ended) - state.started, 0.0)


def _since(state: JobState) -> str:
    if state.started is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.started))


def _duration(state: JobState) -> str:
    seconds = _seconds(state)
    if seconds is None:
        return "-"
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
