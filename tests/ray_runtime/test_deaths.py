"""How a worker died, from Ray's own texts (2.60)."""

import pytest

from dnformer.ray_runtime.deaths import named_death

# as `kill -9` of a worker gave it
KILLED = """The actor died unexpectedly before finishing this task.
\tclass_name: RayTrainWorker
\tactor_id: 79a5e4e385a7d9c62cedfdae01000000
\tpid: 27026
\tnamespace: a965662e-8469-4883-953d-063bc45b67ec
\tip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit \
detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes \
include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop \
--force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected \
error."""
# as Ray's sources have them
NODE = """The actor died unexpectedly before finishing this task.
\tip: 10.77.0.3
The actor is dead because its node has died. Node Id: 5f3c"""
PRESSURE = """2 worker(s) were killed due to the node running low on memory. Memory on the node was
15.2GB / 16.0GB (0.95)."""
REMOVED = "The actor is dead because it was killed by `ray.kill`."


@pytest.mark.parametrize(
    ("text", "before", "after", "expected"),
    [
        pytest.param(KILLED, 0, 0, "was killed on 192.0.2.2, or crashed", id="signal"),
        pytest.param(KILLED, None, None, "was killed on 192.0.2.2, or crashed", id="unknown"),
        pytest.param(NODE, 0, 0, "is lost: its node 10.77.0.3 is gone", id="node"),
        pytest.param(NODE, 0, 1, "is lost: its node 10.77.0.3 is gone", id="node-and-a-kill"),
        pytest.param(REMOVED, 0, 0, "was ended by Ray", id="ray-kill"),
        pytest.param("ValueError: 1 is no 2", 0, 1, None, id="no-death"),
        pytest.param("Connection closed by peer [10.77.0.3]:4", 0, 1, None, id="no-death-itself"),
    ],
)
def test_named_death_is_one_short_line(
    text: str, before: int | None, after: int | None, expected: str | None
) -> None:
    assert named_death(text, before, after) == expected


def test_named_death_tells_a_kill_for_memory_by_the_kernels_count() -> None:
    found = named_death(KILLED, 3, 4)
    assert found is not None
    assert found.startswith("was killed for memory on 192.0.2.2: the kernel killed 1 process for")
    assert "lower loader.batch_size" in found


def test_named_death_by_rays_own_watch_over_memory() -> None:
    found = named_death(PRESSURE, 0, 0)
    assert found is not None
    assert found.startswith("was killed by Ray, which saw the node run out of memory: lower ")
