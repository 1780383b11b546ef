"""Notes on failed groups of workers, which the controller writes and the driver reads."""

import json
import logging
import time

from dnformer import storage

log = logging.getLogger(__name__)

_FAILED = "failed"


def note_failure(folder: str, text: str) -> None:
    """Notes why a group of workers of `folder` failed."""
    name = f"{_FAILED}/group-{time.time_ns()}.json"
    content = json.dumps({"at": time.time(), "text": text}).encode()
    try:
        storage.write_bytes(storage.join(folder, name), content)
    except OSError as error:
        # a note is not worth a run
        log.warning("%s; %s", text, error)


def failures(folder: str, *, after: int = 0) -> list[str]:
    """What was noted of failed groups of workers of `folder`, oldest first.

    Args:
        folder: of the run.
        after: how many are known already, and are left out.
    """
    inside = storage.join(folder, _FAILED)
    names = [name for name in storage.list_names(inside) if name.startswith("group-")]
    contents = (storage.read_bytes(storage.join(inside, name)) for name in names[after:])
    return [json.loads(content)["text"] for content in contents]
