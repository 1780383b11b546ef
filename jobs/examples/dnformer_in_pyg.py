"""DNFormer in a plain PyG script: a `Data`, a model, a loop of your own.

python jobs/examples/dnformer_in_pyg.py
"""

# %%
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv
from torch_geometric.utils import stochastic_blockmodel_graph

from dnformer import DNFormer
from dnformer.nn import DiffAttention

torch.manual_seed(0)

# %%
sizes, classes = [60, 60, 60], 3
within, between = 0.1, 0.01
edge_index = stochastic_blockmodel_graph(
    sizes, torch.full((classes, classes), between).fill_diagonal_(within)
)
y = torch.repeat_interleave(torch.arange(classes), torch.tensor(sizes))
x = 2 * F.one_hot(y, 8).float() + torch.randn(len(y), 8)
train = torch.rand(len(y)) < 0.6
data = Data(x=x, edge_index=edge_index, y=y, train_mask=train, test_mask=~train)

# %% [markdown]
# The whole model takes what PyG's models take.

# %%
model = DNFormer(data.num_features, 8, classes, num_layers=2, heads=2, dropout=0.2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _epoch in range(40):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    hits = model(data.x, data.edge_index).argmax(dim=1) == data.y
accuracy = hits[data.test_mask].float().mean().item()
print(f"test accuracy {accuracy:.1%}")

# %% [markdown]
# One layer stands beside PyG's: `layer(x, edge_index)`.


# %%
class Mixed(torch.nn.Module):
    """A convolution of PyG's, then differential attention."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GraphConv(data.num_features, 8)
        self.attention = DiffAttention(8, heads=2, add_self_loops=True)
        self.head = torch.nn.Linear(8, classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Scores of each class."""
        h = self.conv(x, edge_index).relu()
        scores: torch.Tensor = self.head(h + self.attention(h, edge_index))
        return scores


mixed = Mixed()
F.cross_entropy(mixed(data.x, data.edge_index), data.y).backward()
print(f"{sum(p.numel() for p in mixed.parameters()):,} parameters, all with a gradient")
