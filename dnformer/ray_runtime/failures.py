"""Notes on failed groups of workers, which the controller writes and the driver reads."""

import json
import time

from dnformer import storage

_FAILED = "failed"


def note_failure(folder: str, text: str) -> None:
    """Notes why a group of workers of `folder` failed."""
    name = f"{_FAILED}/group-{time.time_ns()}.json"
    content = json.dumps({"at": time.time(), "text": text}).encode()
    storage.write_bytes(storage.join(folder, name), content)


def failures(folder: str) -> list[str]:
    """What was noted of each failed group of workers of `folder`, oldest first."""
    inside = storage.join(folder, _FAILED)
    names = [name for name in storage.list_names(inside) if name.startswith("group-")]
    return [json.loads(storage.read_bytes(storage.join(inside, name)))["text"] for name in names]
