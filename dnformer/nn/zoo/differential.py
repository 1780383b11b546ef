"""The Differential Transformer's own attention, dense, and its block.

B sequences (or batches of nodes), T elements of each, C channels, H heads, D head width of a
branch, V width of a head's values.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dnformer.errors import ConfigError
from dnformer.nn.dropout import Dropout
from dnformer.nn.lam import ReparamLambda, reparam_init
from dnformer.nn.options import check_choice

LAMBDAS = ("reparam", "sigmoid")


class DifferentialAttention(nn.Module):
    """Softmax attention minus lambda times another one, each over all elements.

    "reparam" is arXiv 2410.05258, equations 1 to 3: D = C / 2H, the branches have keys of their
    own, lambda is one number for the layer, and a head is (1 - lambda_init) RMSNorm(A V), V = 2D.
    "sigmoid" is the authors' second version: D = C / H, the branches share their keys, lambda is
    sigmoid(x W) of each query and head, and there is neither norm nor scale, V = D.
    There are no biases. Memory is linear in T: no map is kept.

    Args:
        channels: C, of input and output.
        heads: H; half of those of a softmax attention of the same size under "reparam".
        lam: "reparam" or "sigmoid".
        depth: the layer's place in the model, from 1, which "reparam" starts lambda from.
        causal: an element sees itself and those before it; otherwise all.
        rotary: turns queries and keys by their position, as in a language model; without, the
            elements are a set.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        lam: str = "reparam",
        depth: int = 1,
        causal: bool = False,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        check_choice("lam", lam, LAMBDAS)
        reparam = lam == "reparam"
        parts = 2 * heads if reparam else heads
        if channels < 1 or heads < 1 or channels % parts:
            raise ConfigError(f"channels = {channels} must be a multiple of {parts}: lam = {lam!r} "
                              f"with heads = {heads}")  # fmt: skip
        self.heads, self.width = heads, channels // parts
        if rotary and self.width % 2:
            raise ConfigError(f"rotary turns pairs of channels: a head's width {self.width} is odd")
        self.causal, self.rotary = causal, rotary
        self.query = nn.Linear(channels, 2 * heads * self.width, bias=False)
        self.key = nn.Linear(channels, channels, bias=False)
        self.value = nn.Linear(channels, channels, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)
        self.of_layer: ReparamLambda | None = None
        self.of_query: nn.Linear | None = None
        self.norm: nn.RMSNorm | None = None
        self.scale = 1.0
        if reparam:
            self.of_layer = ReparamLambda(heads, head_width=self.width, depth=depth)
            self.norm = nn.RMSNorm(2 * self.width, eps=1e-5)
            self.scale = 1 - reparam_init(depth)
        else:
            self.of_query = nn.Linear(channels, heads, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        for linear in (self.query, self.key, self.value, self.out, self.of_query):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
        if self.of_layer is not None:
            self.of_layer.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        """Attention of each element over the others."""
        q, k = self._branches(x)
        v = self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, V]
        first, second = (
            scaled_dot_product_attention(q[branch], k[branch], v, is_causal=self.causal)
            for branch in (0, 1)
        )
        heads = first - self._lambda(x) * second
        if self.norm is not None:
            heads = self.norm(heads.to(self.norm.weight.dtype)) * self.scale
        mixed: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return mixed

    def maps(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B H T T"]:
        """What each element's values are weighted with, [.., query, key]; quadratic memory."""
        q, k = self._branches(x)
        first, second = softmax_maps(q, k, causal=self.causal)
        weights: Tensor = first - self._lambda(x) * second
        return weights

    def _branches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, each [2, B, H, T, D]."""
        q = self.query(x).unflatten(-1, (self.heads, 2, -1)).permute(3, 0, 2, 1, 4)
        k = self.key(x).unflatten(-1, (self.heads, -1, self.width)).permute(3, 0, 2, 1, 4)
        if self.rotary:
            q, k = turned(q), turned(k)
        return q, k.expand_as(q)

    def _lambda(self, x: Tensor) -> Tensor:
        """[H, 1, 1] of the layer, or [B, H, T, 1] of each query."""
        if self.of_layer is not None:
            return self.of_layer.head_values()[0][:, None, None]
        assert self.of_query is not None
        lam: Tensor = self.of_query(x).sigmoid()
        return lam.transpose(1, 2).unsqueeze(-1)

    def extra_repr(self) -> str:
        """What the children don't show."""
        return f"heads={self.heads}, causal={self.causal}, rotary={self.rotary}"


def softmax_maps(
    q: Float[Tensor, "*B T D"], k: Float[Tensor, "*B T D"], *, causal: bool
) -> Float[Tensor, "*B T T"]:
    """softmax(q kᵀ / √D), over the elements up to the query where it is causal."""
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        size = logits.shape[-1]
        later = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(later, -torch.inf)
    maps: Tensor = logits.softmax(-1)
    return maps


def turned(x: Float[Tensor, "*B T D"], base: float = 10_000.0) -> Float[Tensor, "*B T D"]:
    """Rotary positions: channels 2i and 2i + 1 turned by t · base^(-2i/D), for t = 0..T-1.

    arXiv 2104.09864, equation 34.
    """
    size, width = x.shape[-2:]
    speed = base ** (-torch.arange(0, width, 2, device=x.device, dtype=x.dtype) / width)
    angle = torch.arange(size, device=x.device, dtype=x.dtype)[:, None] * speed  # [T, D / 2]
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class SequenceBlock(nn.Module):
    """y = x + drop(attention(norm x)), y + drop(SwiGLU(norm y)): the paper's equations 4 and 5.

    The norms are RMSNorm; SwiGLU's hidden width is 8/3 C.

    Args:
        attention: any module from [B, T, C] to [B, T, C].
        channels: C.
        dropout: share of both branches set to zero in training; the paper has none.
    """

    def __init__(self, attention: nn.Module, channels: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = -(-8 * channels // 3)
        self.attention = attention
        self.norm1, self.norm2 = (nn.RMSNorm(channels, eps=1e-5) for _ in range(2))
        self.gate = nn.Linear(channels, hidden, bias=False)
        self.expand = nn.Linear(channels, hidden, bias=False)
        self.contract = nn.Linear(hidden, channels, bias=False)
        self.dropout = Dropout(dropout)
        for linear in (self.gate, self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)

    def forward(self, x: Float[Tensor, "B T C"]) -> Float[Tensor, "B T C"]:
        """The block on each sequence."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        h = self.norm2(x)
        h = nn.functional.silu(self.gate(h)) * self.expand(h)
        out: Tensor = x + self.dropout(self.contract(h))
        return out
