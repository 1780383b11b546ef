"""Fixtures of the whole tree: graphs written and opened for real, and an S3 server in a thread."""

import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from dnformer.data.cache import write_cache
from dnformer.data.graph import Graph, open_graph
from dnformer.data.table import EdgeColumns, GraphTable, NodeColumns, class_target

if TYPE_CHECKING:
    from .flaky_s3 import FlakyS3

Pairs = list[tuple[int, int]]

# a shell that starts the tests in the background has them, and all their programs, ignore Ctrl-C
signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples on every machine, however slow it is
settings.register_profile("dnformer", deadline=None, derandomize=True)
settings.load_profile("dnformer")
# pytest --timeout 0 --hypothesis-profile=long tests/training/test_resume.py: some 300 deaths
settings.register_profile(
    "long", settings.get_profile("dnformer"), max_examples=1800, derandomize=False
)


SHARED = Path(__file__).parents[1].parent / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs the real graphs or oracles where they are not beside the checkout."""
    if SHARED.is_dir():
        return
    for item in items:
        if item.get_closest_marker("shared"):
            item.add_marker(pytest.mark.skip(reason="needs ../shared"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On tensors this small a second thread only waits, for long where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_DTYPES = {"x": np.float32, "y": np.int64, "split": np.int8}


def _table(edges: Pairs, **columns: Any) -> GraphTable:
    carried = columns.pop("edge_columns", EdgeColumns())
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    order = np.lexsort((pairs[:, 0], pairs[:, 1]))
    for name in _DTYPES.keys() & columns.keys():
        if isinstance(columns[name], list):
            columns[name] = np.array(columns[name], dtype=_DTYPES[name])
    if "y" in columns:
        columns["targets"] = class_target(
            columns.pop("y"), columns.pop("num_classes", 0), columns.pop("classes", None)
        )
    return GraphTable(
        nodes=NodeColumns(**{"num_nodes": int(pairs.max(initial=-1)) + 1} | columns),
        src=pairs[order, 0].copy(),
        dst=pairs[order, 1].copy(),
        policies={"direction": "directed"},
        counts={"edges_read": len(edges)},
        edges=carried.take(order),
    )


@pytest.fixture(scope="session")
def make_table() -> Callable[..., GraphTable]:
    """Pairs (src, dst), node columns (x, y, split may be lists) and `edge_columns`, as a table."""
    return _table


@pytest.fixture(scope="session")
def make_graph(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Graph]:
    """The same as an open graph."""
    base = tmp_path_factory.mktemp("graphs")

    def make(edges: Pairs, **columns: Any) -> Graph:
        folder = base / uuid.uuid4().hex
        write_cache(_table(edges, **columns), str(folder / "data"), source="test")
        return open_graph(folder / "data", cache_dir=folder / "stores")

    return make


@pytest.fixture(scope="module")
def server() -> "Iterator[FlakyS3]":
    """An S3 server that fails as it is told, with an empty bucket `bucket`."""
    from .flaky_s3 import FlakyS3

    with FlakyS3() as server:
        server.create_bucket("bucket")
        yield server


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URI of an empty bucket on a moto server, to which AWS_* in the environment lead."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # file systems are kept by their arguments, and would remember another server's address
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        bucket = f"bucket-{uuid.uuid4().hex[:8]}"
        boto3.client("s3").create_bucket(Bucket=bucket)
        yield f"s3://{bucket}"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()
