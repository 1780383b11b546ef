"""Mixed precision: every kind of model and of input, near what float32 gives."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dnformer.nn import DNFormer
from dnformer.nn.attention import DiffAttention

MODELS = [
    {},
    {"norm": "pre"},
    {"lam": "head"},
    {"lam": "fixed"},
    {"lam": "reparam"},
    {"attention": "single"},
    {"head_norm": True},
]


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x of a few ones, edges by destination, their attributes, labels."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(30, 12, generator=generator) < 0.3).float()
    row = torch.randint(30, (90,), generator=generator)
    edge_index = torch.stack([row, torch.arange(90) // 3])
    attr = torch.randn(90, 2, generator=generator)
    return x, edge_index, attr, torch.randint(3, (30,), generator=generator)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("settings", MODELS, ids=str)
def test_model_under_autocast(settings: dict, sparse: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = DNFormer(12, 8, 3, 2, 2, edge_channels=2, dropout=0.2, **settings)
    x, edge_index, attr, y = batch()
    given = x.to_sparse_csr() if sparse else x
    losses, grads = [], []
    for enabled in (False, True):
        torch.manual_seed(1)
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=enabled):
            out = model(given, edge_index, edge_attr=attr)
            loss = functional.cross_entropy(out, y)
        assert out.dtype == torch.float32
        # as GradScaler does: small gradients would be 0 in float16
        (loss * 1024).backward()
        losses.append(loss.item())
        found = [p.grad for p in model.parameters() if p.grad is not None]
        assert {g.dtype for g in found} == {torch.float32}
        grads.append(torch.cat([g.reshape(-1) for g in found]))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]
    least = 0.95 if dtype == torch.bfloat16 else 0.99
    assert functional.cosine_similarity(grads[0], grads[1], dim=0) > least


@pytest.mark.parametrize("lam", ["edge", "head"])
def test_project_casts_its_input_once(lam: str) -> None:
    layer = DiffAttention(8, 2, lam=lam)
    with torch.autocast("cpu", torch.bfloat16):
        projected = layer.project(torch.randn(5, 8))
    assert {t.dtype for t in projected} == {torch.bfloat16}
    if lam == "edge":
        # one tensor is kept for the backward pass of all maps of the sources
        maps = [getattr(projected, name).grad_fn for name in ("k", "v", "w")]
        kept = {_saved_input(node) for node in maps}
        assert len(kept) == 1


def _saved_input(node: torch.autograd.graph.Node) -> int:
    while not node.name().startswith(("AddmmBackward", "MmBackward")):
        node = node.next_functions[0][0]
    return (node._saved_mat1 if "Addmm" in node.name() else node._saved_self).data_ptr()


def test_project_without_autocast_keeps_its_input() -> None:
    layer = DiffAttention(8, 2).double()
    assert {t.dtype for t in layer.project(torch.randn(5, 8).double())} == {torch.float64}
    with torch.autocast("cpu", torch.bfloat16):
        # autocast leaves float64 alone
        projected = layer.project(torch.randn(5, 8).double())
    assert {t.dtype for t in projected} == {torch.float64}
