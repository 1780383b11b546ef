"""Versions: what is installed, and whether DNFormer works with it."""

import importlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from dnformer.doctor.check import Check

_PACKAGE = "dnformer"
# those that each have a line; the others share one
_NAMED = ("torch", "torch-geometric", "numba", "ray")
# Ray's import is Ray's door's to open
_IMPORTED = {"torch": "torch", "torch-geometric": "torch_geometric", "numba": "numba"}
_EXTRAS = {"s3fs": ("s3://", "s3"), "gcsfs": ("gs://", "gcs")}


def check_versions() -> list[Check]:
    """Python, DNFormer and what it requires: there, as new as it has to be, and importable."""
    try:
        own = importlib.metadata.metadata(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return [Check(_PACKAGE, False, "not installed", "pip install . in its checkout")]
    required = {str(canonicalize_name(each.name)): each for each in requirements(_PACKAGE)}
    others = [each for name, each in required.items() if name not in _NAMED]
    return [
        _python(own["Requires-Python"]),
        Check(_PACKAGE, True, own["Version"]),
        *(_package(required[name]) for name in _NAMED if name in required),
        _others(others),
        *(_optional(name) for name in _EXTRAS),
    ]


def requirements(package: str, extra: str = "") -> Iterator[Requirement]:
    """What an installed package requires here, of itself or for one of its extras."""
    for text in importlib.metadata.requires(package) or []:
        requirement = Requirement(text)
        marker = requirement.marker
        of_extra = marker is not None and "extra" in str(marker)
        if of_extra == bool(extra) and (marker is None or marker.evaluate({"extra": extra})):
            yield requirement


def installed(name: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _python(allowed: str) -> Check:
    found = platform.python_version()
    if SpecifierSet(allowed).contains(found, prereleases=True):
        return Check("python", True, found)
    return Check(
        "python", False, f"{found}; {_PACKAGE} works with {allowed}",
        f"make the environment anew with a Python {allowed}",
    )  # fmt: skip


def _package(requirement: Requirement) -> Check:
    name, found = requirement.name, _misfit(requirement)
    if found:
        return Check(name, False, found, _install(requirement))
    version = installed(name) or ""
    module = _IMPORTED.get(canonicalize_name(name))
    # PyG cannot be blamed for a torch that does not import
    if module == "torch_geometric" and import_problem("torch"):
        module = None
    if module is not None:
        found = import_problem(module, version)
        if found:
            again = f"pip install --force-reinstall --no-deps {name}=={Version(version).public}"
            return Check(name, False, found, again)
    return Check(name, True, version)


def _misfit(requirement: Requirement) -> str:
    """What is wrong with the version of a required package; else empty."""
    version = installed(requirement.name)
    if version is None:
        return f"not installed; {_PACKAGE} works with {requirement.specifier}"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{version}; {_PACKAGE} works with {requirement.specifier}"
    return ""


def import_problem(module: str, version: str = "") -> str:
    """Why a module cannot be imported, or is of another version; else empty."""
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything
        reason = " ".join(str(error).split())
        return f"{version} does not import ({type(error).__name__}: {reason:.200})".lstrip()
    imported = getattr(found, "__version__", version)
    if version and Version(imported).public != Version(version).public:
        return f"{version} by its record, but {imported} is what imports: a half-done installation"
    return ""


def _install(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"pip install '{requirement.name}{extras}{requirement.specifier}'"


def _others(required: list[Requirement]) -> Check:
    misfits = [each for each in required if _misfit(each)]
    if not misfits:
        return Check("libraries", True, f"{len(required)} others as {_PACKAGE} needs them")
    found = "; ".join(f"{each.name} {_misfit(each)}" for each in misfits)
    mend = "pip install " + " ".join(
        _install(each).removeprefix("pip install ") for each in misfits
    )
    return Check("libraries", False, found, mend)


def _optional(name: str) -> Check:
    protocol, extra = _EXTRAS[name]
    mend, version = f"pip install '{_PACKAGE}[{extra}]'", installed(name)
    if version is None:
        return Check(name, True, f"not installed; needed for {protocol} only: {mend}")
    for requirement in requirements(_PACKAGE, extra):
        if canonicalize_name(requirement.name) == name and _misfit(requirement):
            return Check(name, False, _misfit(requirement), mend)
    return Check(name, True, version)
