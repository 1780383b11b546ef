import pytest
import torch
from torch import Tensor

from dnformer.errors import DataError
from dnformer.nn.projection import InputProjection

# 4 nodes, 5 features; node 1 has none, feature 3 is in no node
DENSE = [[1.0, 0, 2, 0, 0], [0] * 5, [0, 0.5, 0, 0, 3], [0, 0, -1, 0, 0]]


def csr(x: Tensor, index: torch.dtype = torch.int64) -> Tensor:
    found = x.to_sparse_csr()
    return torch.sparse_csr_tensor(
        found.crow_indices().to(index), found.col_indices().to(index), found.values(), x.shape
    )


def run(projection: InputProjection, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = projection(x)
    weight = torch.arange(1.0, out.numel() + 1).view_as(out).to(out)
    return out.detach(), *torch.autograd.grad(out, list(projection.parameters()), weight)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_forward_sparse_equals_dense(dtype: torch.dtype, index: torch.dtype) -> None:
    torch.manual_seed(0)
    projection = InputProjection(5, 3).to(dtype)
    torch.nn.init.normal_(projection.bias)
    x = torch.tensor(DENSE, dtype=dtype)
    for ours, expected in zip(run(projection, csr(x, index)), run(projection, x), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_forward_half_features() -> None:
    projection = InputProjection(5, 3)
    x = torch.tensor(DENSE)
    expected = projection(x)
    torch.testing.assert_close(projection(x.half()), expected)
    torch.testing.assert_close(projection(csr(x.half())), expected)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_forward_sparse_same_bits() -> None:
    # 3000 rows of 20 out of 200 features: each feature's gradient sums 300 terms
    generator = torch.Generator().manual_seed(0)
    col = torch.randint(0, 200, (3000, 20), generator=generator).flatten()
    values = torch.rand(60_000, generator=generator)
    x = torch.sparse_csr_tensor(torch.arange(3001) * 20, col, values, (3000, 200))
    projection = InputProjection(200, 16)
    first, second = run(projection, x), run(projection, x)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_forward_wrong_input() -> None:
    projection = InputProjection(5, 3)
    with pytest.raises(DataError, match="x has 4 features, the model was built for 5"):
        projection(torch.zeros(2, 4))
    with pytest.raises(DataError, match="sparse_coo: give it dense or as"):
        projection(torch.zeros(2, 5).to_sparse())
