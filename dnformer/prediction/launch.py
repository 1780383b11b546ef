"""Starts a prediction and goes on with one: the one entry for the command line and for Python."""

from dataclasses import replace
from typing import Any

from dnformer import ray_runtime, storage
from dnformer.cgroup import cores
from dnformer.config import StorageConfig
from dnformer.data.manifest import Manifest, read_manifest
from dnformer.driver import Driver, Record, meanwhile
from dnformer.errors import ConfigError, DataError
from dnformer.group import Group
from dnformer.memory import memory_limit as memory_of_machine
from dnformer.parsing import parse
from dnformer.prediction.folder import Folder
from dnformer.prediction.options import PredictConfig
from dnformer.prediction.progress import Say, State, read_state, silent
from dnformer.prediction.results import Identity, Predictions, open_predictions
from dnformer.prediction.selection import listed_nodes, selection_of
from dnformer.prediction.worker import PART_ROWS, Job, run_worker
from dnformer.training.trained import Trained, open_trained

# of Ray, and what its workers say; gone with the prediction
_RAY = ".ray"
_MAX_FAILURES = 3
_BY_ITSELF = StorageConfig()


def predict(run: str, out: str, **options: Any) -> Predictions:
    """Predicts nodes with the best model of a run, exactly and in bounded memory.

    A prediction that was stopped, however that was, is gone on with by the same call: parts that
    are done stay. One that is finished is given again.

    Args:
        run: the run's folder, `storage_path/name`.
        out: folder of the predictions, local or any fsspec URI; new, empty, or this prediction's.
        options: fields of `PredictConfig`: `data` (another dataset of the same schema); `ids`,
            `nodes` or `split` (which nodes); `mode`, `embeddings`, `layers`, `compare_sampled`,
            `workers`, `memory_limit`, `temp_dir`, `overwrite`, `storage`.

    Returns:
        The predictions: `.table()` has the rows, with the original ids in column `id`, `.metrics`
        what is known of their quality.

    Raises:
        ConfigError: an option is wrong.
        CheckpointError: there is no run, or it has no best model yet.
        DataError: the dataset does not fit the run, an id is unknown, or `out` holds something
            else.
    """
    values = {name: value for name, value in options.items() if value is not None}
    return start(parse(PredictConfig, {"run": run, "out": out, **values}, name="predict"))


def start(options: PredictConfig, *, say: Say = silent, part_rows: int = PART_ROWS) -> Predictions:
    """The same for parsed options.

    Args:
        options: what to predict.
        say: told how far it is.
        part_rows: rows of a part at most.
    """
    trained = open_trained(options.run, options.storage)
    _check_model(options, trained)
    uri = storage.absolute(options.data or trained.config.data.uri)
    manifest = trained.manifest
    if options.data is not None:
        manifest = read_manifest(uri)
        _check_schema(trained, manifest, uri)
    if trained.result is None:
        say(State(f"warning: {trained.run} is not finished; its best model so far is used", 0, 0))
    identity = _identity(options, trained, uri, manifest)
    listed = listed_nodes(options, uri, manifest)
    found = Folder(options.out, identity).begin(overwrite=options.overwrite)
    if found is not None:
        say(State(f"{found.uri} is there already; --overwrite makes it anew", 0, 0))
        return found
    job = Job(
        _portable(options), identity.model_dump(), listed, _threads(options.workers), part_rows
    )
    return open_predictions(_run(job, options.workers, say))


def _check_model(options: PredictConfig, trained: Trained) -> None:
    model = trained.config.model.name
    if options.mode == "sampled" and trained.config.loader.kind == "full":
        raise ConfigError(
            f"{trained.run} was trained on the whole graph (loader.kind full), so there are no "
            "fan-outs to sample with; leave out --mode sampled"
        )
    asked = [name for name in ("embeddings", "layers") if getattr(options, name)]
    if asked and not trained.layerwise:
        raise ConfigError(f"model {model} gives no {asked[0]}, only dnformer does; leave it out")


def _check_schema(trained: Trained, manifest: Manifest, uri: str) -> None:
    """Whether the model can be applied to a dataset.

    Raises:
        DataError: it has other features or edge attributes than the model was trained with.
    """
    own = trained.manifest
    differing = []
    if manifest.num_features != own.num_features:
        differing.append(f"{manifest.num_features} features, not {own.num_features}")
    names = own.edge_attr_names if trained.config.model.edge_bias else []
    if names and manifest.edge_attr_names != names:
        found = ", ".join(manifest.edge_attr_names) or "none"
        differing.append(f"edge attributes {found}, not {', '.join(names)}")
    if differing:
        raise DataError(
            f"{uri} has {' and '.join(differing)}; {trained.run} can predict only what has the "
            "same columns as the data that it was trained on"
        )


def _identity(options: PredictConfig, trained: Trained, uri: str, manifest: Manifest) -> Identity:
    return Identity(
        run=trained.run,
        model=trained.fingerprint,
        data=uri,
        dataset=manifest.fingerprint,
        selection=selection_of(options),
        mode=options.mode,
        columns=[name for name in ("embeddings", "layers") if getattr(options, name)],
    )


def _portable(options: PredictConfig) -> dict[str, Any]:
    """Plain values that mean the same in another process."""
    places = {name: storage.absolute(value) for name in ("run", "out", "data")
              if (value := getattr(options, name)) is not None}  # fmt: skip
    limit = options.memory_limit
    if limit is None and options.workers:
        # they may be on one machine
        limit = memory_of_machine() // (2 * options.workers)
    return options.portable() | places | {"memory_limit": limit}


def _threads(workers: int) -> int:
    return max(1, cores() // max(workers, 1))


def _run(job: Job, workers: int, say: Say) -> str:
    """Runs the workers; the folder of the predictions."""
    if workers == 0:

        def report(record: Record) -> None:
            say(State(**record))

        return run_worker(job, Group(), Driver(report))
    folder = storage.join(job.options["out"], _RAY)
    needed = ray_runtime.Resources(workers, job.threads)
    followed = storage.join(folder, "progress.json")

    def tell() -> None:
        state = read_state(followed)
        if state is not None:
            say(state)

    with (
        ray_runtime.session(needed, lambda text: say(State(text, 0, 0))),
        meanwhile(tell, folder),
    ):
        # only now: Ray takes its environment when it is imported
        from dnformer.ray_runtime.workers import Policy, run_workers

        found: str = run_workers(
            run_worker, replace(job, progress=followed), resources=needed, folder=folder,
            policy=Policy(_MAX_FAILURES),
        )  # fmt: skip
    storage.remove(folder)
    return found
