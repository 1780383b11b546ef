"""What tables and options a dataset came from: an equal signature needs no second ingest."""

import hashlib
import json
from typing import Any

from dnformer import storage
from dnformer.data.clean import Policies
from dnformer.data.ingest.table_files import TableFiles, open_table
from dnformer.data.ingest.tables import TableSource
from dnformer.data.sources.ogb import OgbSource, ogb_files
from dnformer.data.sources.synthetic import SyntheticSource

# to be raised when the same tables and options shall make another dataset than before
_VERSION = 1


def signature(
    source: TableSource, tables: tuple[TableFiles, TableFiles | None], policies: Policies
) -> str:
    """sha256, in hex, of the content of all files and of all options that the dataset depends on.

    Names of files, the engine and what it may use are no part of it.
    """
    edges, nodes = tables
    features = None
    if source.features_file is not None:
        file = source.features_file
        features = [file] if file.endswith(".npy") else open_table([file]).files
    options: dict[str, Any] = source.model_dump(exclude={"edges", "nodes", "features_file"})
    said = {
        "version": _VERSION,
        "options": options,
        "policies": policies.model_dump(),
        "files": {
            name: None if files is None else [storage.content_id(file) for file in files]
            for name, files in (
                ("edges", edges.files),
                ("nodes", None if nodes is None else nodes.files),
                ("features", features),
            )
        },
    }
    return _hashed(said)


def stream_signature(source: OgbSource | SyntheticSource, policies: Policies) -> str:
    """The same of a source that is streamed: of what generates it, or of its raw files."""
    files = ogb_files(source) if isinstance(source, OgbSource) else []
    said = {
        "version": _VERSION,
        "options": source.model_dump(exclude={"root"}),
        "policies": policies.model_dump(),
        "files": [storage.content_id(file) for file in files],
    }
    return _hashed(said)


def _hashed(said: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
