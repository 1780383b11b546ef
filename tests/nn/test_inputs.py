import warnings

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

from dnformer.errors import ConfigError
from dnformer.nn import DNFormer
from dnformer.nn.inputs import Inputs

from .helpers import EDGES, features

# a row of zeros, and one whose sum is below 1
X = torch.tensor([[1.0, 0, 3], [0, 0, 0], [0.25, 0, 0.25], [0, 5, 0]])


def sparse(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        # torch says once a process that CSR tensors are in beta
        warnings.simplefilter("ignore", UserWarning)
        return x.to_sparse_csr()


def test_inputs_row_norm_is_pygs() -> None:
    expected = NormalizeFeatures()(Data(x=X.clone())).x
    inputs, before = Inputs("row").eval(), X.clone()
    assert torch.allclose(inputs(X), expected)
    assert torch.allclose(inputs(sparse(X)).to_dense(), expected)
    assert torch.equal(X, before)


def test_inputs_leave_alone_what_they_have_nothing_to_do_with() -> None:
    given = sparse(X)
    assert Inputs()(X) is X
    assert Inputs(dropout=0.5).eval()(given) is given


def test_inputs_drop_their_share_and_keep_the_mean() -> None:
    inputs, x = Inputs(dropout=0.25), torch.ones(200, 100)
    torch.manual_seed(0)
    for dropped in (inputs(x), inputs(sparse(x)).to_dense()):
        assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.75])
        assert (dropped == 0).float().mean() == pytest.approx(0.25, abs=0.02)


def test_inputs_refuse_an_unknown_norm() -> None:
    with pytest.raises(ConfigError, match="input_norm = 'column' is not one of none, row"):
        Inputs("column")


def test_dnformer_takes_them() -> None:
    torch.manual_seed(0)
    normal = DNFormer(5, 8, 3, 2, 2, dropout=0.0, attention_dropout=0.0, input_norm="row").double()
    plain = DNFormer(5, 8, 3, 2, 2, dropout=0.0, attention_dropout=0.0).double()
    plain.load_state_dict(normal.state_dict())
    x = features().abs() + 1
    assert torch.allclose(normal(x, EDGES), plain(x / x.sum(1, keepdim=True), EDGES))
