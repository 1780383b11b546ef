"""A model of PyG's on our batches, and GraphSAGE through the whole of `dnformer train`.

python jobs/examples/pyg_in_dnformer.py
"""

# %%
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import dnformer
from dnformer.config import SplitConfig
from dnformer.data.sources.synthetic import SyntheticSource

# %%
source = SyntheticSource(nodes=600, classes=4, features=16, degree=6, noise=0.5)
dnformer.ingest(source, "cache/sbm")
graph = dnformer.open_graph("cache/sbm", split=SplitConfig(random=(0.6, 0.2, 0.2)))

# %% [markdown]
# Our loader's batches are PyG `Data`: the seeds are their first `batch_size` nodes.

# %%
torch.manual_seed(0)
loader = dnformer.NeighborLoader(
    graph, graph.split("train"), num_neighbors=[10, 5], batch_size=64, seed=0
)
model = GraphSAGE(graph.num_features, 16, num_layers=2, out_channels=graph.num_classes)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    loader.set_epoch(epoch)
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()

# %% [markdown]
# Every neighbour for the test nodes: -1 draws them all.

# %%
test = dnformer.NeighborLoader(
    graph, graph.split("test"), num_neighbors=[-1, -1], batch_size=64, seed=0
)
hits = 0
with torch.no_grad():
    for batch in test:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        hits += int((out.argmax(dim=1) == batch.y[: batch.batch_size]).sum())
accuracy = hits / len(graph.split("test"))
print(f"test accuracy {accuracy:.1%} by a loop of our own")

# %% [markdown]
# The zoo's models train as DNFormer does: checkpoints, resume, repeats, searches, reports.

# %%
result = dnformer.train({
    "name": "sage",
    "data": {"uri": "cache/sbm", "split": {"random": [0.6, 0.2, 0.2]}},
    "loader": {"num_neighbors": [10, 5], "batch_size": 64},
    "model": {"name": "sage", "hidden": 16},
    "train": {"epochs": 5, "threads": 1},
})  # fmt: skip
print(f"test accuracy {result.test['accuracy']:.1%} by dnformer train")
