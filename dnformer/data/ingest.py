"""Ingest: reads a source, applies the policies, publishes the dataset."""

from typing import TYPE_CHECKING, TypeAlias, Union

from pydantic import Field, model_validator

from dnformer.config import Section, SplitConfig, parse
from dnformer.data.cache import write_cache
from dnformer.data.clean import Policies, clean
from dnformer.data.manifest import Manifest
from dnformer.data.ogb import OgbSource, open_ogb
from dnformer.data.raw import RAW_POLICIES, RawSource, read_raw
from dnformer.data.stream import in_memory
from dnformer.data.synthetic import SyntheticSource, open_synthetic
from dnformer.data.table import RawGraph
from dnformer.data.tables import TableSource, read_tables

if TYPE_CHECKING:
    from torch_geometric.data import Data

Source: TypeAlias = Union[RawSource, OgbSource, TableSource, SyntheticSource, "Data"]


class IngestConfig(Section):
    """What `dnformer ingest` makes of what: one of pyg, ogb, synthetic and table."""

    out: str = Field(description="folder of the dataset: local or any fsspec URI")
    pyg: RawSource | None = Field(None, description="raw files of a graph that PyG knows")
    ogb: OgbSource | None = Field(None, description="raw files of a graph of OGB")
    synthetic: SyntheticSource | None = Field(None, description="a generated graph")
    table: TableSource | None = Field(None, description="edge and node tables")
    policies: dict[str, str] = Field(
        {}, description="direction, duplicates, self_loops, where not the source's defaults"
    )
    split: SplitConfig | None = Field(None, description="default split recipe of the dataset")
    overwrite: bool = Field(False, description="replace another dataset at `out`")

    @model_validator(mode="after")
    def _one_source(self) -> "IngestConfig":
        names = ("pyg", "ogb", "synthetic", "table")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            raise ValueError(f"takes one source of pyg, ogb, synthetic, table; found {found}")
        return self

    @property
    def source(self) -> RawSource | OgbSource | SyntheticSource | TableSource:
        """The one source."""
        found = self.pyg or self.ogb or self.synthetic or self.table
        assert found is not None
        return found


def ingest(
    source: Source,
    out: str,
    *,
    policies: dict[str, str] | None = None,
    split: SplitConfig | None = None,
    overwrite: bool = False,
) -> tuple[Manifest, bool]:
    """Publishes `source` as a dataset at `out`.

    Args:
        source: raw files of PyG's or OGB's, tables, a synthetic graph, or a PyG `Data`.
        out: folder of the dataset, local or any fsspec URI.
        policies: `direction`, `duplicates`, `self_loops`, where not the source's defaults:
            directed as given, drop, keep; raw PyG files: undirected, drop, drop; OGB's: the
            direction that OGB gives them.
        split: default split recipe, recorded outside the fingerprint.
        overwrite: replace another dataset that is there.

    Returns:
        The manifest, and whether anything was written: an equal dataset is left as it is.

    Raises:
        DataError: the data are wrong; the message names file, row and value.
        ConfigError: an option is wrong.
    """
    raw, defaults, name = _read(source)
    table = clean(raw, _policies(defaults, policies or {}))
    return write_cache(table, out, source=name, split=split, overwrite=overwrite)


def _read(source: Source) -> tuple[RawGraph, Policies, str]:
    """(graph, default policies, what the manifest calls it)."""
    match source:
        case RawSource():
            return read_raw(source), RAW_POLICIES, f"pyg:{source.name}"
        case OgbSource():
            stream, defaults = open_ogb(source)
            return in_memory(stream), defaults, f"ogb:{source.name}"
        case SyntheticSource():
            return in_memory(open_synthetic(source)), Policies(), source.name
        case TableSource():
            return read_tables(source), Policies(), f"table:{source.edges}"
    # the one source that needs torch, which takes seconds to import
    from dnformer.data.pyg import from_data

    return from_data(source), Policies(), "torch_geometric.data.Data"


def _policies(defaults: Policies, given: dict[str, str]) -> Policies:
    return parse(Policies, defaults.model_dump() | given, name="policies")
