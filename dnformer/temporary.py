"""Temporary folders that outlive nobody: what a killed process left, the next one removes."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX = "dnformer-tmp-"


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new local folder while the block runs; those of dead processes beside it go first.

    Args:
        parent: where; None: the system's folder of temporary files.
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_abandoned(parent)
    folder = parent / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
    # the system drops the lock of a process that dies, however it does
    lock = FileLock(f"{folder}.lock")
    try:
        with lock:
            folder.mkdir(mode=0o700)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)


def _remove_abandoned(parent: Path) -> None:
    for file in parent.glob(f"{_PREFIX}*.lock"):
        lock = FileLock(file, timeout=0)
        try:
            with lock:
                shutil.rmtree(file.with_suffix(""), ignore_errors=True)
        except (Timeout, OSError):
            continue
        file.unlink(missing_ok=True)
