"""Mixed precision learns what float32 learns, from dense and from sparse features."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dnformer.config import OptimConfig
from dnformer.nn import DNFormer
from dnformer.training.optim import Optim, Position

CPU = torch.device("cpu")
STEPS = 40


def communities() -> tuple[Tensor, Tensor, Tensor]:
    """x, edges by destination and labels of 150 nodes, whose neighbours are mostly of their own."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(150) % 3
    x = (torch.rand(150, 9, generator=generator) < 0.2).float()
    x[torch.arange(150), y] += (torch.rand(150, generator=generator) < 0.4).float()
    offsets = torch.randint(50, (150, 5), generator=generator) * 3
    stray = (torch.rand(150, 5, generator=generator) < 0.2).long()
    row = (torch.arange(150)[:, None] + offsets + stray) % 150
    return x, torch.stack([row.reshape(-1), torch.arange(150).repeat_interleave(5)]), y


def accuracy(precision: str, *, sparse: bool) -> float:
    """Of the nodes that were not trained on."""
    x, edge_index, y = communities()
    x = x.to_sparse_csr() if sparse else x
    torch.manual_seed(0)
    model = DNFormer(9, 16, 3, 2, 2, dropout=0.2)
    config = OptimConfig(lr=0.01, ema_decay=0.8, clip_norm=5)
    optim = Optim(model, config, precision=precision, device=CPU)
    train = torch.arange(150) < 90
    for step in range(STEPS):
        torch.manual_seed(step)
        optim.optimizer.zero_grad()
        with optim.autocast():
            loss = functional.cross_entropy(model(x, edge_index)[train], y[train])
        optim.backward(loss)
        assert optim.step(Position(step, 1, STEPS)).applied
    with optim.averaged(), torch.no_grad():
        right = model.eval()(x, edge_index).argmax(1) == y
    return right[~train].double().mean().item()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns_what_float32_learns(precision, sparse):
    plain = accuracy("float32", sparse=sparse)
    assert plain > 0.8
    assert accuracy(precision, sparse=sparse) == pytest.approx(plain, abs=0.05)
