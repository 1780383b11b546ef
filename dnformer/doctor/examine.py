"""Everything that is asked to be looked at, in one report."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dnformer import storage
from dnformer.config import RunConfig, StorageConfig
from dnformer.data.manifest import Manifest
from dnformer.doctor.check import Check
from dnformer.doctor.cluster import check_cluster
from dnformer.doctor.facts import Facts, look
from dnformer.doctor.machine import Asked, check_machine
from dnformer.doctor.plan import Plan, asked_of, cache_dir_of, read_plan, threads_of
from dnformer.doctor.probe import check_storage
from dnformer.doctor.versions import check_versions
from dnformer.errors import DNFormerError

# of the processes of a Ray that we start (0.4 GiB, Ray 2.60) and its object store
_RAY_BYTES = 512 << 20

if TYPE_CHECKING:
    from dnformer.doctor.estimate import Estimate


class Group(NamedTuple):
    """Checks of one thing: a machine, a store, a cluster, a run."""

    title: str
    checks: list[Check]


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        groups: all checks.
        estimate: of the run that was asked about, where it could be made.
    """

    groups: list[Group]
    estimate: dict[str, Any] | None = None

    @property
    def checks(self) -> list[Check]:
        """Those of all groups."""
        return [check for group in self.groups for check in group.checks]

    @property
    def ok(self) -> bool:
        """Whether training would work."""
        return all(check.ok for check in self.checks)


_BY_ITSELF = StorageConfig()


def examine(
    *,
    address: str | None = None,
    uri: str | None = None,
    config: str | None = None,
    reached: StorageConfig = _BY_ITSELF,
    bench: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Looks at this machine, and at what else is named.

    Args:
        address: of a Ray head's dashboard.
        uri: of a folder or bucket.
        config: path of a run's config.
        reached: how stores are reached.
        bench: whether to measure throughput.
        say: told what takes seconds.
    """
    working = check_versions()
    works = all(check.ok for check in working)
    # elsewhere, the run asks nothing of this machine
    here = address is None and not os.environ.get("RAY_ADDRESS")
    plan = (
        Plan([]) if config is None else read_plan(config, reached, whole=works, elsewhere=not here)
    )
    facts = look(cache_dir_of(plan.config) if plan.config is not None and here else None)
    asked, estimate = Asked(), None
    sound = works and all(check.ok for check in plan.checks)
    if plan.config is not None and plan.manifest is not None and sound:
        asked, estimate = _weigh(plan.config, plan.manifest, facts, plan.checks, say)
    elif plan.config is not None:
        asked = asked_of(plan.config, None)
    groups = [Group("this machine", working + check_machine(facts, asked if here else Asked()))]
    if plan.checks:
        groups.append(Group(f"run {config}", plan.checks))
    if uri is not None:
        groups.append(Group(f"storage {storage.redacted(uri)}", check_storage(uri)))
    if address is not None:
        groups.append(Group(f"cluster {storage.redacted(address)}", check_cluster(address)))
    if bench and works:
        groups.append(Group("throughput", _bench(uri or str(facts.cache.folder), say)))
    return Report(groups, None if estimate is None else asdict(estimate))


def _weigh(
    config: RunConfig,
    manifest: Manifest,
    facts: Facts,
    checks: list[Check],
    say: Callable[[str], None],
) -> tuple[Asked, "Estimate | None"]:
    """What the run asks of this machine, and the estimate; a failure to make one is a check."""
    # torch must have been found to import before this does
    from dnformer.doctor.estimate import estimate, has_store, store_bytes

    disk = 0 if has_store(config, manifest) else store_bytes(manifest)
    asked = asked_of(config, disk)
    threads = min(threads_of(config, facts), facts.usable)
    say("training for some seconds, for an estimate")
    try:
        found = estimate(config, manifest, threads=threads)
    except (DNFormerError, OSError) as error:
        mend = "correct the config or the dataset as the message says"
        checks.append(Check("estimate", False, str(error), mend))
        return asked, None
    memory = found.memory_per_worker_bytes * found.workers
    memory += _RAY_BYTES if config.train.max_workers else 0
    return replace(asked, memory_bytes=memory), found


def _bench(uri: str, say: Callable[[str], None]) -> list[Check]:
    from dnformer.doctor.bench import bench

    say("measuring operator, sampler and storage: some 10 s")
    return bench(uri)
