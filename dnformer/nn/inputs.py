"""What becomes of a batch's features before any model sees them; the stored dataset stays.

N nodes, F input features.
"""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from dnformer.nn.dropout import Dropout
from dnformer.nn.options import check_choice


@final
class Inputs(nn.Module):
    """Features over their row's sum, where asked for, and then a share of them dropped.

    It has no parameters. Sparse features stay sparse.

    Args:
        norm: "row": each row over its sum, where that is above 1, as PyG's `NormalizeFeatures`
            does to features that have no negative values; "none".
        dropout: share of the features set to zero in training.

    Raises:
        ConfigError: a setting is out of range.
    """

    def __init__(self, norm: str = "none", dropout: float = 0.0) -> None:
        super().__init__()
        check_choice("input_norm", norm, ("none", "row"))
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "N F"]) -> Float[Tensor, "N F"]:
        """`x` dense or `torch.sparse_csr`; `x` itself where there is nothing to do."""
        if self.norm == "none" and not (self.training and self.dropout.p):
            return x
        if x.layout != torch.sparse_csr:
            dense: Tensor = self.dropout(x / _sums(x).unsqueeze(1) if self.norm == "row" else x)
            return dense
        crow, values = x.crow_indices(), x.values()
        if self.norm == "row":
            values = values / _sums(x).repeat_interleave(crow.diff(), output_size=len(values))
        return torch.sparse_csr_tensor(
            crow, x.col_indices(), self.dropout(values), size=x.shape, check_invariants=False
        )

    def extra_repr(self) -> str:
        """The norm."""
        return f"norm={self.norm!r}"


def _sums(x: Tensor) -> Tensor:
    """The sum of each row, and at least 1, `[N]`."""
    if x.layout == torch.strided:
        return x.sum(1).clamp(min=1)
    ones = x.values().new_ones(x.shape[1], 1)
    sums = functional.embedding_bag(
        x.col_indices(), ones, x.crow_indices(), mode="sum", per_sample_weights=x.values(),
        include_last_offset=True,
    )  # fmt: skip
    return sums.squeeze(1).clamp(min=1)
