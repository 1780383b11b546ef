"""A walk-through on Cora: a dataset, its batches, a run, its repeats, and what it has learnt.

    python jobs/examples/cora.py --root RAW    # RAW/Cora/raw/ind.cora.*, as PyG downloads them

Without --root a generated graph stands in. Run it cell by cell in an editor that knows `# %%`.
"""

# %%
import argparse

import torch

import dnformer
from dnformer.data.sources.raw import RawSource
from dnformer.data.sources.synthetic import SyntheticSource

parser = argparse.ArgumentParser()
parser.add_argument("--root", help="folder of raw files")
parser.add_argument("--epochs", type=int, default=100)
given = parser.parse_args()

# %% [markdown]
# A dataset is a folder of Parquet files, here or on any store. Making it again is a no-op.

# %%
source: RawSource | SyntheticSource
if given.root:
    source, uri = RawSource(name="Planetoid/Cora", root=given.root), "cache/cora"
else:
    source, uri = SyntheticSource(nodes=600, classes=4, features=16, noise=0.5), "cache/stand-in"
dnformer.ingest(source, uri)
graph = dnformer.open_graph(uri)
print(f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_classes} classes")

# %% [markdown]
# A run is a config and a folder. It goes on where it was stopped; a finished one gives its result.

# %%
config = {
    "name": "walk",
    "data": {"uri": uri, "split": {"random": [0.6, 0.2, 0.2]}},
    "loader": {"num_neighbors": [10, 5], "batch_size": 256},
    "model": {"hidden": 64, "heads": 2},
    "train": {"epochs": given.epochs, "patience": 30, "threads": 1},
}
result = dnformer.train(config)
print(f"test accuracy {result.test['accuracy']:.1%} after {result.epochs} epochs")

# %% [markdown]
# The second softmax takes off what all neighbours share. With one softmax it is another run.

# %%
single = dnformer.train(config, settings={"name": "walk-single", "model.attention": "single"})
print(f"with one softmax {single.test['accuracy']:.1%}")

# %% [markdown]
# Batches are PyG's `Data`, which epoch and seed decide, whatever the number of threads.

# %%
from dnformer.config import SplitConfig  # noqa: E402

graph = dnformer.open_graph(uri, split=SplitConfig(random=(0.6, 0.2, 0.2)))
loader = dnformer.NeighborLoader(
    graph, graph.split("train"), num_neighbors=[10, 5], batch_size=256, seed=0
)
loader.set_epoch(0)
first = next(iter(loader))
loader.set_epoch(0)
assert torch.equal(first.n_id, next(iter(loader)).n_id)
print(first)
