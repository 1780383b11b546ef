"""The command line: parses, builds a config, calls one function, prints what it gave.

Exit codes: 0 done; 1 a run that started failed; 2 a mistake by the user, one line on stderr;
130 and 143 stopped by Ctrl-C and by SIGTERM.
"""

import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from dnformer import config as configs
from dnformer import parsing
from dnformer.cli_analyze import analyze
from dnformer.cli_bench import bench
from dnformer.cli_cache import cache
from dnformer.cli_common import Ended, Json, say, split_value, waiting, with_quiet
from dnformer.cli_doctor import doctor
from dnformer.cli_explain import explain
from dnformer.cli_export import export
from dnformer.cli_ingest import ingest
from dnformer.cli_init import init
from dnformer.cli_predict import predict
from dnformer.cli_report import report
from dnformer.cli_reproduce import reproduce
from dnformer.cli_runs import runs
from dnformer.cli_storage import StorageOptions, configure_storage
from dnformer.cli_submit import list_jobs, logs, status, stop, submit
from dnformer.cli_train import evaluate, train
from dnformer.cli_tune import tune
from dnformer.errors import DNFormerError

# what is wrong with a path that the user named, and not with the machine
_WRONG_PATHS = (
    FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError,
)  # fmt: skip

app = typer.Typer(
    name="dnformer",
    help="Trains differential-attention graph transformers on graphs of any size.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line, by default the process's own, and exits with its code."""
    # torch's OpenMP threads wait for each other in a loop; on cores that others use too, a long one
    # costs more than it saves (bench/LOG.md, 2026-11-29)
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", stream=sys.stderr)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments or ["--help"], standalone_mode=False)
    except DNFormerError as error:
        _fail(str(error), error.exit_code)
    except Ended as ended:
        say(str(ended))
        sys.exit(ended.code)
    except typer.Abort:
        _fail("stopped", 130)
    except typer.TyperException as error:
        _fail(f"{error} (see dnformer --help)", 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or str(error)
        if isinstance(error, _WRONG_PATHS):
            _fail(f"{where}{reason}; choose another path, or make it one that can be used", 2)
        _fail(f"{where}{reason}", 1)
    if code == 130:  # how typer says that the user pressed Ctrl-C
        _fail("stopped", code)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> NoReturn:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


app.command()(ingest)


@app.command()
def describe(
    uri: Annotated[str, typer.Argument(help="Folder of a dataset.")],
    split: Annotated[str | None, typer.Option(help="Split to count, as in ingest.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of a computed split.")] = 0,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Print what a dataset holds: counts, degrees, homophily, isolated nodes, splits, classes."""
    configure_storage(storage_options)
    with waiting("loading"):
        from dnformer.data.graph import open_graph
    value = split_value(split)
    recipe = parsing.parse(configs.SplitConfig, value, name="--split") if value else None
    facts = open_graph(uri, split=recipe, seed=seed, say=say).describe()
    if as_json:
        print(json.dumps(facts))
        return
    print(facts["uri"])
    for name, fact in facts.items():
        if name != "uri" and fact is not None:
            print(f"  {name.replace('_', ' '):16} {_plain(fact)}")


def _plain(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{name} {_plain(value)}" for name, value in fact.items()) or "none"
    if isinstance(fact, list):
        return ", ".join(map(str, fact)) or "none"
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, int):
        return f"{fact:,}"
    return f"{fact:.4g}" if isinstance(fact, float) else str(fact)


app.command()(init)
app.command()(train)
app.command()(tune)
app.command()(reproduce)
app.command()(evaluate)
app.command()(report)
app.command()(predict)
app.command()(analyze)
app.command()(explain)
app.command()(export)
app.command()(doctor)
app.command()(status)
app.command()(logs)
app.command()(stop)
app.command("list")(list_jobs)

app.add_typer(submit, name="submit")
app.add_typer(bench, name="bench")
app.add_typer(runs, name="runs")
app.add_typer(cache, name="cache")

for group in (app, *(info.typer_instance for info in app.registered_groups)):
    for each in group.registered_commands if group else ():
        assert each.callback is not None
        each.callback = with_quiet(each.callback)


if __name__ == "__main__":
    main()
