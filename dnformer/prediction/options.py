"""What a prediction is asked for."""

from typing import Any, Literal

from pydantic import Field, model_validator

from dnformer.config import StorageConfig
from dnformer.parsing import Section


class PredictConfig(Section):
    """A prediction: which run says what of which nodes, and where that goes."""

    run: str = Field(description="the run's folder, storage_path/name")
    out: str = Field(description="folder of the predictions: local or any fsspec URI")
    data: str | None = Field(
        None, description="dataset of the same schema; null: the one that the run was trained on"
    )
    ids: list[str | int] | None = Field(None, description="original ids of the nodes; null: all")
    nodes: str | None = Field(
        None, description="file of original ids: .txt (one a line), or .csv and .parquet with a "
        "column `id`"
    )  # fmt: skip
    split: Literal["train", "val", "test"] | None = Field(None, description="nodes of this split")
    mode: Literal["exact", "sampled"] = Field(
        "exact", description="every neighbour, or as many as loader.num_neighbors of the run says"
    )
    embeddings: bool = Field(False, description="what the last layer gives for each node")
    layers: bool = Field(False, description="what each layer gives for each node")
    compare_sampled: bool = Field(
        False, description="measure sampled outputs beside exact ones however many nodes that are"
    )
    workers: int = Field(0, ge=0, description="Ray workers; 0: this process")
    memory_limit: str | int | None = Field(
        None,
        description="memory of each worker's process, as in 2GiB, or bytes; null: half of the "
        "machine's, or of what its cgroup may use, shared among them",
    )
    temp_dir: str | None = Field(
        None, description="local folder of what does not fit in memory; null: the system's"
    )
    overwrite: bool = Field(False, description="replace other predictions at `out`")
    storage: StorageConfig = Field(
        StorageConfig(), description="how stores are reached, beside what the run's config says"
    )

    @model_validator(mode="after")
    def _fits(self) -> "PredictConfig":
        given = [name for name in ("ids", "nodes", "split") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"nodes are chosen by one of ids, nodes and split; found {given}")
        if self.ids is not None and not self.ids:
            raise ValueError("ids is empty; leave it out to predict all nodes")
        asked = [name for name in ("embeddings", "layers", "compare_sampled")
                 if getattr(self, name)]  # fmt: skip
        if self.mode == "sampled" and asked:
            raise ValueError(f"{asked[0]} needs mode exact")
        return self

    def portable(self) -> dict[str, Any]:
        """Plain values, for another process."""
        return self.model_dump(mode="json")
