import copy
import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data.cache import write_cache
from dnformer.data.graph import open_graph
from dnformer.data.manifest import Manifest, parse_manifest, read_manifest
from dnformer.data.table import GraphTable
from dnformer.errors import DataError


@pytest.fixture(scope="module")
def dataset(make_table: Callable[..., GraphTable]) -> Iterator[str]:
    """A dataset with a file of each kind."""
    uri = f"memory://{uuid.uuid4().hex}"
    table = make_table([(0, 1), (2, 1)], y=[0, 1, -1], num_classes=2, ids=["a", "b", "c"])
    write_cache(table, uri, source="test", split=SplitConfig(planetoid=1))
    yield uri
    storage.remove(uri)


def stored(uri: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(storage.read_bytes(storage.join(uri, "manifest.json")))
    return values


def parse(values: object) -> Manifest:
    return parse_manifest(json.dumps(values).encode(), "s3://b/data")


def test_read_manifest_gives_what_was_written(dataset: str) -> None:
    manifest = read_manifest(dataset)
    assert (manifest.num_nodes, manifest.num_edges, manifest.num_classes) == (3, 2, 2)
    assert manifest.ids == "string"
    assert manifest.split == SplitConfig(planetoid=1)
    assert re.fullmatch(r"ids/part-[0-9a-f]{8}-00000\.parquet", manifest.id_files[0].path)
    assert parse(manifest.model_dump(mode="json")) == manifest


def test_read_manifest_of_an_empty_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no dataset here \(manifest\.json is missing\).*ingest"):
        read_manifest(str(tmp_path))


def test_parse_manifest_newer_format_is_named(dataset: str) -> None:
    with pytest.raises(DataError, match=r"format 2 is newer than 1.*update dnformer"):
        parse({**stored(dataset), "format": 2, "future": True})


@pytest.mark.parametrize("number", [0, -1, "1", None, [1]], ids=repr)
def test_parse_manifest_other_format_is_none(dataset: str, number: object) -> None:
    with pytest.raises(DataError, match="no dataset manifest"):
        parse({**stored(dataset), "format": number})


@pytest.mark.parametrize("values", [[], 5, "x", None, {}], ids=repr)
def test_parse_manifest_other_json_is_none(values: object) -> None:
    with pytest.raises(DataError, match="no dataset manifest"):
        parse(values)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"format": 1', b"9" * 5000],
    ids=["empty", "brace", "bytes", "deep", "cut", "long-number"],
)
def test_parse_manifest_other_bytes_are_no_json(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^s3://b/data/manifest\.json: not valid JSON"):
        parse_manifest(content, "s3://b/data")


@pytest.mark.parametrize("kind", ["edges", "nodes", "id_files"])
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "edges/../../x", "a\\b", "", "s3://other/x"]
)
def test_parse_manifest_file_outside_the_folder_is_refused(
    dataset: str, kind: str, path: str
) -> None:
    values = stored(dataset)
    values[kind][0]["path"] = path
    with pytest.raises(DataError, match="leads outside s3://b/data"):
        parse(values)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        pytest.param("edges", "its edges files have 3 rows, not 2", id="edges"),
        pytest.param("nodes", "its nodes files have 4 rows, not 3", id="nodes"),
        pytest.param("id_files", "its id_files files have 4 rows, not 3", id="ids"),
    ],
)
def test_parse_manifest_rows_that_do_not_add_up_are_refused(
    dataset: str, kind: str, expected: str
) -> None:
    values = stored(dataset)
    values[kind][0]["rows"] += 1
    with pytest.raises(DataError, match=expected):
        parse(values)


def test_parse_manifest_id_files_without_ids_are_refused(dataset: str) -> None:
    with pytest.raises(DataError, match="its id_files files have 3 rows, not 0"):
        parse({**stored(dataset), "ids": "index"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("fingerprint", "0" * 63, id="short-fingerprint"),
        pytest.param("fingerprint", "../" + "0" * 61, id="path-as-fingerprint"),
        pytest.param("fingerprint", "0" * 64 + "\n", id="fingerprint-with-newline"),
        pytest.param("num_nodes", 0, id="no-nodes"),
        pytest.param("num_edges", -1, id="negative"),
        pytest.param("features", "csr", id="unknown-features"),
        pytest.param("surprise", 1, id="unknown-key"),
    ],
)
def test_parse_manifest_wrong_value_is_named(dataset: str, key: str, value: object) -> None:
    with pytest.raises(DataError, match=rf"manifest\.json: .*{key}.*; ingest the dataset again$"):
        parse({**stored(dataset), key: value})


values_of_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=5), child),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in list(keys)]
    return found + [
        place
        for container, key in list(found)
        if isinstance(container[key], dict | list)
        for place in places(container[key])
    ]


@settings(max_examples=150)
@given(data=st.data())
def test_open_graph_garbage_in_a_manifest_is_a_data_error(
    dataset: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values = copy.deepcopy(stored(dataset))
    for _ in range(data.draw(st.integers(1, 3), label="mutations")):
        container, key = data.draw(st.sampled_from(places(values)), label="place")
        if data.draw(st.booleans(), label="delete"):
            del container[key]
        else:
            container[key] = data.draw(values_of_json, label="value")
    manifest = storage.join(dataset, "manifest.json")
    content = storage.read_bytes(manifest)
    storage.write_bytes(manifest, json.dumps(values).encode())
    try:
        with suppress(DataError):
            graph = open_graph(dataset, cache_dir=tmp_path_factory.mktemp("stores"))
            assert graph.fingerprint == json.loads(content)["fingerprint"]
    finally:
        storage.write_bytes(manifest, content)


@settings(max_examples=200)
@given(position=st.integers(0, 2**16), byte=st.binary(max_size=3))
def test_parse_manifest_damaged_bytes_are_a_data_error(
    dataset: str, position: int, byte: bytes
) -> None:
    content = storage.read_bytes(storage.join(dataset, "manifest.json"))
    position %= len(content)
    damaged = content[:position] + byte + content[position + 1 :]
    with suppress(DataError):
        parse_manifest(damaged, dataset)
