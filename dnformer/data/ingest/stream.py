"""A streamed graph into a dataset in bounded memory: edges sorted on disk, nodes by block."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np

from dnformer.data import fingerprint as fp
from dnformer.data.cache import CacheWriter, make_manifest, schema
from dnformer.data.clean import Policies, check_policies, counts_of
from dnformer.data.ingest.edges import EdgeSorter, RefusedError, Written
from dnformer.data.ingest.progress import Progress
from dnformer.data.ingest.workspace import Workspace
from dnformer.data.manifest import Manifest, PartFile
from dnformer.data.parts import PartTable, node_part, node_row_bytes, write_pieces
from dnformer.data.stream import EdgeChunk, GraphStream
from dnformer.data.table import EdgeColumns, NodeColumns
from dnformer.data.threads import in_threads
from dnformer.errors import DataError

_PART_BYTES = 256 << 20


def ingest_stream(
    stream: GraphStream,
    policies: Policies,
    writer: CacheWriter,
    space: Workspace,
    progress: Progress,
    facts: dict[str, Any],
) -> Manifest:
    """Reads `stream` and stages the dataset's parts.

    Args:
        stream: the graph.
        policies: what becomes of edges.
        writer: of the dataset.
        space: folder, memory and threads.
        progress: told of everything.
        facts: what the manifest shall say beside what is found out here.

    Raises:
        ConfigError: a policy does not fit such edges.
        DataError: a value is wrong, or an edge is what an `error` policy refuses.
    """
    chunks = stream.edges()
    first = next(chunks, None)
    like = EdgeColumns() if first is None else first.edges.take(slice(0))
    check_policies(policies, num_nodes=stream.num_nodes, edges=like)
    sorter = EdgeSorter(
        space, policies, num_nodes=stream.num_nodes, num_edges=stream.num_edges, like=like
    )
    _take_edges(stream, chain(() if first is None else (first,), chunks), sorter, space, progress)
    edges = _write_edges(stream, sorter, policies, writer, space, progress)
    node_files, hashes, columns = _write_nodes(stream, writer, space, progress)
    counts = counts_of(
        policies,
        num_read=sorter.num_read,
        num_loops=sorter.num_loops,
        num_repeats=sum(one.num_repeats for one in edges),
        num_added=sum(one.num_added for one in edges),
    )
    facts = facts | {
        "policies": policies.model_dump(),
        "counts": {**stream.counts, **counts, "isolated_nodes": sorter.num_isolated()},
        "edges": [one.part for one in edges],
        "nodes": node_files,
        "id_files": [],
    }
    return make_manifest(schema(columns, like), facts, [*hashes, *(one.digests for one in edges)])


def _take_edges(
    stream: GraphStream,
    chunks: Iterator[EdgeChunk],
    sorter: EdgeSorter,
    space: Workspace,
    progress: Progress,
) -> None:
    def numbered() -> Iterator[tuple[int, EdgeChunk]]:
        first = 0
        for chunk in chunks:
            yield first, chunk
            first += chunk.src.size

    def add(item: tuple[int, EdgeChunk]) -> int:
        first, (src, dst, columns) = item
        return sorter.add(src, dst, columns, np.arange(first, first + src.size))

    try:
        with progress.stage("read edges", total=stream.num_edges) as stage:
            for rows in in_threads(add, numbered(), space.threads):
                stage.add(rows=rows)
    except RefusedError:  # of self-loops: every end is a node
        found = stream.where(_first_loop(stream))
        raise DataError(
            f"{found} is a self-loop; remove it, or set self_loops to keep or drop"
        ) from None


def _first_loop(stream: GraphStream) -> int:
    first = 0
    for src, dst, _ in stream.edges():
        loop = src == dst
        if loop.any():
            return first + int(np.argmax(loop))
        first += src.size
    raise AssertionError("a self-loop was there before")


def _write_edges(
    stream: GraphStream,
    sorter: EdgeSorter,
    policies: Policies,
    writer: CacheWriter,
    space: Workspace,
    progress: Progress,
) -> list[Written]:
    def write(numbered: tuple[int, Any]) -> Written:
        number, leaves = numbered
        return sorter.write(writer.uri, writer.name("edges", number), leaves)

    written = []
    with progress.stage("sort and write edges", total=sorter.num_read) as stage:
        for one in in_threads(write, enumerate(sorter.parts()), space.threads):
            written.append(one)
            stage.add(rows=one.part.rows)
    repeats = [one.first_repeat for one in written if one.first_repeat is not None]
    if repeats and policies.duplicates == "error":
        second, first = (stream.where(row) for row in min(repeats))
        raise DataError(f"{second} repeats {first}; remove it, or set duplicates to drop or keep")
    return written


def _write_nodes(
    stream: GraphStream, writer: CacheWriter, space: Workspace, progress: Progress
) -> tuple[list[PartFile], list[fp.Digests], NodeColumns]:
    """The parts, their hashes, and the first block, which tells the columns."""
    files: list[PartFile] = []
    hashes = []
    blocks = stream.nodes()
    first = next(blocks)
    per_part = max(1, int(_PART_BYTES / node_row_bytes(first)) // fp.BLOCK)
    blocks = chain((first,), blocks)
    start = 0

    def pieces(hasher: fp.BlockHasher, blocks: Iterator[NodeColumns]) -> Iterator[PartTable]:
        nonlocal start
        for block in blocks:
            fp.hash_nodes(hasher, start, block)
            yield node_part(block, start)
            start += block.num_nodes
            stage.add(rows=block.num_nodes)

    with progress.stage("write nodes", total=stream.num_nodes) as stage:
        while start < stream.num_nodes:
            hasher = fp.BlockHasher()
            name = writer.name("nodes", len(files))
            block_parts = pieces(hasher, islice(blocks, per_part))
            part = write_pieces(writer.uri, name, block_parts, space.folder)
            files.append(part)
            hashes.append(hasher.digests())
    return files, hashes, first
