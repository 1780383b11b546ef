"""The first thing a job does on the head: checks what is there, then becomes the command.

    python -m dnformer.submit.head VERSION EXTRA,.. COMMAND ..

Only the standard library and `packaging`, which Ray needs: anything else may be missing.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import dnformer


def lacking(requirements: Sequence[str], extras: Sequence[str]) -> Iterator[str]:
    """What is not there of `requirements`, as in `duckdb>=2.0 (found 1.4)`."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            found = None
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            yield f"{requirement.name}{requirement.specifier} (found {found or 'none'})"


def main(arguments: Sequence[str]) -> None:
    """Checks, says in one line what is wrong, or goes on with the command."""
    version, extras, *command = arguments
    # a folder that Python looks into before ours
    shipped = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    home = str(Path(dnformer.__file__).parents[1])
    versions = [found.version for found in metadata.distributions(name="dnformer")]
    if home not in shipped or versions[:1] != [version]:
        _fail(
            f"the head runs its own dnformer {versions[0] if versions else ''} in {home}, not the "
            f"{version} that was submitted; take it off the head's PYTHONPATH"
        )
    missing = list(lacking(metadata.requires("dnformer") or [], extras.split(",")))
    if missing:
        _fail(
            f"the cluster's image cannot run dnformer {version}, which needs {', '.join(missing)}; "
            "build the image anew from this version, or submit with the version it was built for"
        )
    if len(versions) > 1 and versions[1] != version:
        print(f"dnformer {version} as submitted; the image's own {versions[1]} is not used")
    # Ray sets it to 1 where nobody asked for CPUs; a command sets its own thread counts
    if os.environ.get("OMP_NUM_THREADS") == "1":
        del os.environ["OMP_NUM_THREADS"]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "dnformer.cli", *command])


def _fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
