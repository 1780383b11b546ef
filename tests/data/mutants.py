"""Datasets that are damaged on purpose, each a function of a seed: bytes, JSON, columns."""

import copy
import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Files = dict[str, bytes]
Rng = np.random.Generator
MANIFEST = "manifest.json"

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**40, 2**55, 2**63, 2**64, -(2**63), 10**400, 0.5,
    -0.0, 1e308, float("nan"), float("inf"), "", "1", "x", "\x00", "é" * 300, "../x", "/etc/passwd",
    "edges/../x", "\ud800", [], [[]], [1, "a"], {}, {"a": 1}, [None] * 50, "0" * 64, "int8",
    "float16", "sparse", "dense", "string", "regression", "multilabel", "class",
]  # fmt: skip


def _pick(rng: Rng, options: list[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _parts(files: Files) -> list[str]:
    return sorted(name for name in files if name != MANIFEST)


def _manifest(files: Files) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(files[MANIFEST])
    return values


def _with_manifest(files: Files, values: Any) -> Files:
    return files | {MANIFEST: json.dumps(values).encode()}


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in list(keys)]
    for container, key in list(found):
        if isinstance(container[key], dict | list):
            found += _places(container[key])
    return found


def _damaged(rng: Rng, data: bytes) -> bytes:
    """Some bytes flipped, cut off, taken out, repeated or set to nothing."""
    kind, at = int(rng.integers(5)), int(rng.integers(len(data)))
    length = int(rng.integers(1, 64))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + data[at + length :]
    if kind == 2:
        return data[: at + length] + data[at:]
    if kind == 3:
        return data[:at] + bytes(min(length, len(data) - at)) + data[at + length :]
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        changed[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def manifest_bytes(rng: Rng, files: Files) -> Files:
    """The manifest, as a broken disk gives it."""
    return files | {MANIFEST: _damaged(rng, files[MANIFEST])}


def manifest_values(rng: Rng, files: Files) -> Files:
    """One or two values of the manifest are others, or gone."""
    values = _manifest(files)
    for _ in range(int(rng.integers(1, 3))):
        container, key = _pick(rng, _places(values))
        kind = int(rng.integers(12))
        if kind == 0:
            del container[key]
        elif kind == 1:
            container[key] = _deep(int(rng.integers(1, 900)))
        elif kind == 2 and isinstance(container[key], int | float):
            container[key] += int(rng.integers(-2, 3))
        elif kind == 3 and isinstance(container, dict):
            container["surprise"] = container[key]
        elif kind == 4 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(_pick(rng, HOSTILE))
    return _with_manifest(files, values)


def manifest_counts(rng: Rng, files: Files) -> Files:
    """Counts that agree with each other, and with nothing else."""
    values = _manifest(files)
    kind, count = _pick(rng, [("edges", "num_edges"), ("nodes", "num_nodes")])
    value = int(_pick(rng, [0, 1, 2, 10**5, 10**9, 2**31, 2**40, 2**55]))
    for part in values[kind]:
        part["rows"] = 0
    values[kind][-1]["rows"] = values[count] = value
    if kind == "nodes" and values["id_files"]:
        for part in values["id_files"]:
            part["rows"] = 0
        values["id_files"][-1]["rows"] = value
    return _with_manifest(files, values)


def manifest_widths(rng: Rng, files: Files) -> Files:
    """Widths and kinds of columns that no file has."""
    values = _manifest(files)
    kind = int(rng.integers(4))
    if kind == 0:
        values["num_features"] = _pick(rng, [0, 1, 3, 1000, 2**31 - 1])
        if values.get("feature_scale"):
            values["feature_scale"] = [1.0] * min(values["num_features"], 1000)
    elif kind == 1:
        _pick(rng, values["targets"])["num_outputs"] = _pick(rng, [1, 5, 10**6, 10**12, 2**70])
    elif kind == 2:
        values["edge_attr_names"] = ["a"] * _pick(rng, [0, 1, 3, 1000])
    else:
        target = _pick(rng, values["targets"])
        target["kind"] = _pick(rng, ["class", "multilabel", "regression"])
        target.pop("classes", None)
    return _with_manifest(files, values)


def parts_swapped(rng: Rng, files: Files) -> Files:
    """Entries of the manifest in another order, with another's name, or twice."""
    values = _manifest(files)
    parts = [part for kind in ("edges", "nodes", "id_files") for part in values[kind]]
    one, other = _pick(rng, parts), _pick(rng, parts)
    kind = int(rng.integers(4))
    if kind == 0:
        one["path"], other["path"] = other["path"], one["path"]
    elif kind == 1:
        before = dict(one)
        one |= other
        other |= before
    elif kind == 2:
        one |= other
    else:
        values[_pick(rng, ["edges", "nodes", "id_files"])].reverse()
    return _with_manifest(files, values)


def part_bytes(rng: Rng, files: Files) -> Files:
    """A part as a broken disk gives it, or without one."""
    name = _pick(rng, _parts(files))
    if rng.integers(8) == 0:
        return {other: data for other, data in files.items() if other != name}
    return files | {name: _damaged(rng, files[name])}


def part_bytes_hashed(rng: Rng, files: Files) -> Files:
    """The same, with a manifest that says so: what is behind the check of the hash is reached."""
    name = _pick(rng, _parts(files))
    return _with_part(files, name, _damaged(rng, files[name]))


def part_footer_hashed(rng: Rng, files: Files) -> Files:
    """Bytes of the part that says where what is."""
    name = _pick(rng, _parts(files))
    data = bytearray(files[name])
    footer = int.from_bytes(data[-8:-4], "little") + 8
    for _ in range(int(rng.integers(1, 3))):
        data[-int(rng.integers(5, footer))] = int(rng.integers(256))
    return _with_part(files, name, bytes(data))


def _with_part(files: Files, name: str, data: bytes, rows: int | None = None) -> Files:
    values = _manifest(files)
    for kind in ("edges", "nodes", "id_files"):
        for part in values[kind]:
            if part["path"] == name:
                part |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                if rows is not None and rows != part["rows"]:
                    count = {"edges": "num_edges", "nodes": "num_nodes"}.get(kind)
                    if count:
                        values[count] += rows - part["rows"]
                    part["rows"] = rows
    return _with_manifest(files | {name: data}, values)


TYPES = [
    pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(),
    pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.bool_(), pa.timestamp("us"),
    pa.list_(pa.float32()), pa.list_(pa.int32()), pa.list_(pa.float32(), 2), pa.decimal128(20, 2),
    pa.dictionary(pa.int32(), pa.string()), pa.null(), pa.struct([("a", pa.int64())]),
]  # fmt: skip


def part_columns(rng: Rng, files: Files) -> Files:
    """A well-formed part, with a manifest that agrees, whose columns are others."""
    name = _pick(rng, _parts(files))
    table = pq.read_table(io.BytesIO(files[name]))
    change: Callable[[Rng, pa.Table], pa.Table] = _pick(
        rng, [_dropped, _renamed, _retyped, _nulled, _reordered, _repeated, _changed, _emptied]
    )
    table = change(rng, table)
    out = io.BytesIO()
    version = _pick(rng, ["1.0", "2.6"])
    pq.write_table(table, out, version=version, row_group_size=int(rng.integers(1, 100_000)))
    return _with_part(files, name, out.getvalue(), table.num_rows)


def _dropped(rng: Rng, table: pa.Table) -> pa.Table:
    return table.drop([_pick(rng, table.column_names)])


def _renamed(rng: Rng, table: pa.Table) -> pa.Table:
    names = list(table.column_names)
    names[int(rng.integers(len(names)))] = _pick(rng, ["", "z", *names])
    return table.rename_columns(names)


def _retyped(rng: Rng, table: pa.Table) -> pa.Table:
    at, kind = int(rng.integers(table.num_columns)), _pick(rng, TYPES)
    try:
        column = table.column(at).cast(kind)
    except pa.ArrowException:
        column = pa.nulls(table.num_rows, pa.int8() if kind == pa.null() else kind)
    return table.set_column(at, table.column_names[at], column)


def _nulled(rng: Rng, table: pa.Table) -> pa.Table:
    at = int(rng.integers(table.num_columns))
    values = table.column(at).to_pylist()
    row = int(rng.integers(len(values)))
    if isinstance(values[row], list) and values[row] and rng.integers(2):
        values[row][0] = None
    else:
        values[row] = None
    column = pa.array(values, table.column(at).type)
    return table.set_column(at, table.column_names[at], column)


def _reordered(rng: Rng, table: pa.Table) -> pa.Table:
    return table.take(rng.permutation(table.num_rows))


def _repeated(rng: Rng, table: pa.Table) -> pa.Table:
    row = int(rng.integers(table.num_rows))
    return pa.concat_tables([table.slice(0, row + 1), table.slice(row)])


def _changed(rng: Rng, table: pa.Table) -> pa.Table:
    at, row = int(rng.integers(table.num_columns)), int(rng.integers(table.num_rows))
    values = table.column(at).to_pylist()
    flat = values[row] if isinstance(values[row], list) and values[row] else values
    flat[row if flat is values else 0] = _pick(rng, [-(2**40), -1, 0, 1, 3, 2**40, "é", 0.5])
    try:
        column = pa.array(values, table.column(at).type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return table.slice(0, row)
    return table.set_column(at, table.column_names[at], column)


def _emptied(rng: Rng, table: pa.Table) -> pa.Table:
    return table.slice(0, int(rng.integers(table.num_rows)))


MUTATIONS: list[Callable[[Rng, Files], Files]] = [
    manifest_bytes,
    manifest_values,
    manifest_counts,
    manifest_widths,
    parts_swapped,
    part_bytes,
    part_bytes_hashed,
    part_footer_hashed,
    part_columns,
]


def mutant(seed: int, files: Files) -> Files:
    """The files of a dataset with one mutation; the kinds take turns."""
    return MUTATIONS[seed % len(MUTATIONS)](np.random.default_rng(seed), files)
