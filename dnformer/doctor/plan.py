"""A run's config, dataset and storage, looked at before it starts."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dnformer import storage
from dnformer.config import RunConfig, StorageConfig, load_config
from dnformer.data.manifest import Manifest, read_manifest
from dnformer.doctor.check import Check, within
from dnformer.doctor.facts import Facts
from dnformer.doctor.machine import Asked
from dnformer.doctor.probe import check_storage, mend_of, text_of
from dnformer.errors import ConfigError, DataError, DNFormerError

_READ_S = 20.0


class Plan(NamedTuple):
    """A run that is to be: None what could not be read."""

    checks: list[Check]
    config: RunConfig | None = None
    manifest: Manifest | None = None


def read_plan(
    path: str, reached: StorageConfig, *, whole: bool = True, elsewhere: bool = False
) -> Plan:
    """Reads a config and its dataset's manifest, and tries the storage of its results.

    Args:
        path: of the config.
        reached: options of stores beside the config's own.
        whole: whether to judge what needs torch, which may not be there.
        elsewhere: whether it is to run on other machines.
    """
    try:
        config = load_config(path)
    except ConfigError as error:
        return Plan([Check("config", False, str(error), "correct it as the message says")])
    # a fault is to be told, not to be waited for
    storage.configure(config.storage.joined(reached).model_copy(update={"retry_s": 0}))
    dataset, manifest = _dataset(config, whole)
    results = _results(config)
    if elsewhere:
        dataset = _noted(dataset, config.data.uri)
        results = _noted(results, config.storage_path)
    known = Check("config", True, f"{path}: run {config.name}")
    return Plan([known, dataset, *_missing_files(config), results], config, manifest)


def _noted(check: Check, uri: str) -> Check:
    if not check.ok or not storage.is_local(uri):
        return check
    return check._replace(found=f"{check.found}; a local path: all machines must share it")


def _missing_files(config: RunConfig) -> Iterator[Check]:
    split = config.data.split
    named = {"data.split.file": split.file if split else None, "loss.mask": config.loss.mask}
    for name, uri in named.items():
        if uri is None:
            continue
        try:
            found = within(_READ_S, partial(storage.exists, uri))
        except (OSError, DNFormerError) as error:
            yield Check(name, False, text_of(error), mend_of(error, uri, "read"))
        else:
            if not found:
                yield Check(name, False, f"{uri}: no such file", "correct its path")


def _dataset(config: RunConfig, whole: bool) -> tuple[Check, Manifest | None]:
    uri = storage.absolute(config.data.uri)
    try:
        manifest = within(_READ_S, lambda: read_manifest(uri))
    except DataError as error:
        return Check("dataset", False, str(error), _dataset_mend(str(error), uri)), None
    except (OSError, DNFormerError) as error:
        return Check("dataset", False, text_of(error), mend_of(error, uri, "read")), None
    problem = _problem(config, manifest) if whole else ""
    if problem:
        mend = "correct data.label or train.monitor, or ingest labels with the dataset"
        return Check("dataset", False, problem, mend), manifest
    found = f"{uri}: {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges"
    return Check("dataset", True, found), manifest


def _problem(config: RunConfig, manifest: Manifest) -> str:
    # here: it needs torch
    from dnformer.training.launch import decided

    try:
        decided(config, manifest)
    except DNFormerError as error:
        return str(error)
    return ""


def _dataset_mend(text: str, uri: str) -> str:
    if "newer than" in text:
        return "update dnformer, or ingest the dataset again with this one"
    if "no dataset here" in text:
        return f"correct data.uri, or make the dataset: dnformer ingest .. --out {uri}"
    return f"make it again: dnformer ingest .. --out {uri} --overwrite"


def _results(config: RunConfig) -> Check:
    """Whether a run can be written: the probe's last word."""
    uri = storage.absolute(config.storage_path)
    last = check_storage(uri)[-1]
    if not last.ok:
        return Check("storage_path", False, f"{last.name}: {last.found}", last.mend)
    return Check("storage_path", True, f"{uri}: written, read, replaced and removed a probe")


def asked_of(config: RunConfig, store_bytes: int | None) -> Asked:
    """What a run asks of this machine, its memory not known yet."""
    train = config.train
    return Asked(
        gpu=train.use_gpu,
        workers=train.max_workers,
        threads=train.threads,
        loader_threads=config.loader.threads if config.loader.kind == "neighbor" else 1,
        pyg_lib=config.loader.sampler == "pyg-lib",
        ray=train.max_workers > 0,
        store_bytes=store_bytes,
    )


def threads_of(config: RunConfig, facts: Facts) -> int:
    """Threads of a worker, as its first start decides them."""
    return config.train.threads or max(1, facts.affinity // max(config.train.max_workers, 1))


def cache_dir_of(config: RunConfig) -> Path | None:
    """`cache.dir`, where it is set."""
    return Path(config.cache.dir).expanduser().absolute() if config.cache.dir else None
