"""What is shipped: the dnformer that runs here, and a job's config.

Ray would install a wheel with all it requires, torch too, so the files that a wheel would hold are
shipped as they are. They are those that Python imports here: the same from a checkout and from an
installed wheel. What they require must be on the cluster, which `head` checks.
"""

import shlex
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import dnformer
from dnformer.errors import BackendError, ConfigError
from dnformer.submit.job import Job

# the code has 2 MB, and the head keeps it in memory; more is something else
_MOST_BYTES = 64 << 20
_NOT_SHIPPED = shutil.ignore_patterns("__pycache__", ".*", "*.md")

# The shell's parent is a worker of Ray: its Python has all that Ray needs, and need not be on PATH.
# Where Ray is in no environment of its own, it is the program that this worker runs.
_LAUNCH = r"""has_ray='import importlib.util as u, sys; sys.exit(u.find_spec("ray") is None)'
prefix=$(sed -n 's|^[^/]*\(/.*\)/lib/python[^/]*/.*/ray/_raylet\.so$|\1|p' \
    "/proc/$PPID/maps" 2> /dev/null | head -n 1)
for python in "$prefix/bin/python" "$(readlink "/proc/$PPID/exe")" "$(command -v python3)"; do
    if [ -x "$python" ] && "$python" -c "$has_ray" 2> /dev/null; then
        exec "$python" -m dnformer.submit.head {version} {extras} "$@"
    fi
done
echo "error: no Python with Ray was found on the head" >&2
exit 2
"""


class Shipped(NamedTuple):
    """What a job needs to be submitted.

    Attributes:
        entrypoint: command line that the head runs.
        environment: Ray's `runtime_env`, of local folders.
        summary: how much it is.
    """

    entrypoint: str
    environment: dict[str, Any]
    summary: str


def stage(job: Job, folder: Path, *, auth_mode: str, package: Path | None = None) -> Shipped:
    """Lays out in the empty `folder` what is to be uploaded.

    Args:
        job: what is to run.
        folder: local, and kept until it was uploaded.
        auth_mode: of the cluster, as `RAY_AUTH_MODE` has it.
        package: the folder of dnformer; None: the one that runs.

    Raises:
        BackendError: dnformer is not installed here.
        ConfigError: it is too much.
    """
    try:
        ours = distribution("dnformer")
    except PackageNotFoundError:
        raise BackendError("dnformer is not installed here; pip install it to submit") from None
    code, work = folder / "dnformer", folder / "job"
    source = package or Path(dnformer.__file__).parent
    shutil.copytree(source, code, ignore=_NOT_SHIPPED)
    info = work / f"dnformer-{ours.version}.dist-info"
    info.mkdir(parents=True)
    # a checkout that is the working folder is found by its egg-info
    facts = ours.read_text("METADATA") or ours.read_text("PKG-INFO") or ""
    (info / "METADATA").write_text(facts, encoding="utf-8")
    config = work / f"{job.command}.yaml"
    config.write_text(yaml.safe_dump(job.config, sort_keys=False), encoding="utf-8")
    extras = shlex.quote(",".join(job.extras()))
    (work / "start.sh").write_text(_LAUNCH.format(version=ours.version, extras=extras))
    by_option = job.command in ("ingest", "predict")
    named = ["--config", config.name] if by_option else [config.name]
    words = ["exec", "sh", "start.sh", job.command, *named, *job.options]
    return Shipped(
        entrypoint=shlex.join(words),
        environment={
            "py_modules": [str(code)],
            "working_dir": str(work),
            "env_vars": _variables(auth_mode),
        },
        summary=_weighed(code, work, ours.version),
    )


def _variables(auth_mode: str) -> dict[str, str]:
    return {
        "RAY_AUTH_MODE": auth_mode,
        "RAY_USAGE_STATS_ENABLED": "0",
        # a run that is stopped saves its state after the step; Ray would kill it after 3 s
        "RAY_JOB_STOP_WAIT_TIME_S": "120",
    }


def _weighed(code: Path, work: Path, version: str) -> str:
    """How much is shipped, in words.

    Raises:
        ConfigError: more than it may be.
    """
    sizes = {file: file.stat().st_size for file in code.rglob("*") if file.is_file()}
    own = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    total = sum(sizes.values()) + own
    summary = (
        f"{total / 1e6:.2f} MB: dnformer {version} with {sum(sizes.values()) / 1e6:.2f} MB in "
        f"{len(sizes)} files, the job's own with {own / 1e6:.2f} MB"
    )
    if total > _MOST_BYTES:
        largest = max(sizes, key=lambda file: sizes[file])
        raise ConfigError(
            f"a job would ship {summary}, more than {_MOST_BYTES / 1e6:.2f} MB; the largest file "
            f"is {largest.relative_to(code.parent)} with {sizes[largest] / 1e6:.2f} MB: move it "
            "out of the package"
        )
    return summary
