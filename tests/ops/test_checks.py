import pytest
import torch

from dnformer.errors import ConfigError, DataError, DNFormerError
from dnformer.ops import QK, Dropout, Lambda, Topology, diff_attention

from .helpers import GRAPH, random_inputs


def call(**changes: object) -> torch.Tensor:
    x = random_inputs(dtype=torch.float32) | {"colptr": GRAPH.colptr, "row": GRAPH.row}
    x |= {"squash": "softplus", "bias": None, "dropout": None} | changes
    return diff_attention(
        Topology(x["colptr"], x["row"]),
        QK(x["q"], x["k"]),
        x["v"],
        Lambda(x["u"], x["w"], x["weight"], x["lam_bias"], x["squash"]),
        bias=x["bias"],
        dropout=x["dropout"],
    )


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"q": torch.zeros(5, 2)}, DataError, r"q \[5, 2\]"),
        ({"q": torch.zeros(5, 2, 5)}, DataError, r"W = 2D .* q \[5, 2, 5\], v \[7, 2, 3\]"),
        ({"k": torch.zeros(6, 2, 6)}, DataError, r"k must be \[7, 2, 6\], found \[6, 2, 6\]"),
        ({"v": torch.zeros(7, 1, 3)}, DataError, r"v must be \[7, 2, 3\]|k must be"),
        ({"u": torch.zeros(4, 4)}, DataError, r"lam.u must be \[5, 4\], found \[4, 4\]"),
        ({"w": torch.zeros(7, 3)}, DataError, r"lam.w must be \[7, 4\]"),
        ({"weight": torch.zeros(2)}, DataError, r"lam.weight must be .* found \[2\]"),
        ({"lam_bias": torch.zeros(3)}, DataError, r"lam.bias must be \[2\]"),
        ({"bias": torch.zeros(7, 2)}, DataError, r"bias must be \[8, 2\], found \[7, 2\]"),
        ({"colptr": torch.tensor([0, 8])}, DataError, r"colptr must be \[6\], found \[2\]"),
        ({"row": GRAPH.row.int()}, DataError, "row must be torch.int64, found torch.int32"),
        ({"k": torch.zeros(7, 2, 6).double()}, DataError, "k must be torch.float32, found"),
        ({"w": torch.zeros(7, 4).half()}, DataError, "lam.w must be torch.float32, found"),
        ({"bias": torch.zeros(8, 2).half()}, DataError, "bias must be torch.float32"),
        ({"k": torch.zeros(7, 2, 6, device="meta")}, DataError, "k is on meta, v on cpu"),
        ({"squash": "tanh"}, ConfigError, "squash 'tanh' is not one of softplus, sigmoid"),
        ({"dropout": Dropout(1.0, torch.tensor(1))}, ConfigError, "dropout p = 1.0"),
        ({"dropout": Dropout(-0.1, torch.tensor(1))}, ConfigError, "dropout p = -0.1"),
        ({"dropout": Dropout(0.1, torch.tensor([1]))}, DataError, r"dropout.seed must be \[\]"),
        ({"dropout": Dropout(0.1, torch.tensor(1.0))}, DataError, "dropout.seed must be torch.int"),
    ],
)  # fmt: skip
def test_diff_attention_wrong_input(
    changes: dict, error: type[DNFormerError], message: str
) -> None:
    call()
    with pytest.raises(error, match=message):
        call(**changes)


def test_diff_attention_float64_parameters_only() -> None:
    x = {name: t.double() for name, t in random_inputs().items() if name != "lam_bias"}
    with pytest.raises(DataError, match=r"lam.bias must be torch.float64"):
        call(**x)
