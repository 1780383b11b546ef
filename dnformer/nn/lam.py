"""Lambda, the share of the second softmax that is taken off the first: one class for each mode.

N source nodes, M destination nodes, H heads, D head width, C = H·D, R width of the lambda hidden
layer (0 where lambda does not depend on the nodes).
"""

import math
import warnings
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnformer.errors import ConfigError
from dnformer.nn.options import check_choice
from dnformer.ops import Lambda

_BOUNDS = ("softplus", "sigmoid")


class LambdaSettings(NamedTuple):
    """The settings of lambda, under their names in the config."""

    lam: str = "edge"
    lambda_width: int | None = None
    lambda_init: float = 0.2
    lambda_bound: str = "softplus"

    def warn_ignored(self, read: frozenset[str], *, because: str) -> None:
        """Warns of settings outside `read` that are not their defaults."""
        default = LambdaSettings()._asdict()
        ignored = [
            f"{name} = {value!r}"
            for name, value in self._asdict().items()
            if name not in read and value != default[name]
        ]
        if ignored:
            warnings.warn(f"{because} ignores {', '.join(ignored)}", stacklevel=4)


class LambdaMode(nn.Module, ABC):
    """How lambda is computed from the layer's input."""

    @abstractmethod
    def hidden_dst(self, x: Float[Tensor, "M C"]) -> Float[Tensor, "M R"]:
        """The destinations' part of the hidden layer, bias included."""

    @abstractmethod
    def hidden_src(self, x: Float[Tensor, "N C"]) -> Float[Tensor, "N R"]:
        """The neighbours' part of the hidden layer."""

    @abstractmethod
    def combine(self, u: Float[Tensor, "M R"], w: Float[Tensor, "N R"]) -> Lambda:
        """What the operator takes."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draws the parameters anew."""


class EdgeLambda(LambdaMode):
    """softplus(W2 · relu(U h_i + W h_j + b1) + b2): one lambda for each edge and head.

    W2 is 0 at first and b2 such that lambda is `init`, so U, W and b1 have no gradient in the
    first step.
    """

    def __init__(self, channels: int, heads: int, *, width: int, init: float, bound: str) -> None:
        super().__init__()
        if width < 1:
            raise ConfigError(f"lambda_width = {width} must be at least 1")
        self.dst = nn.Linear(channels, width)
        self.src = nn.Linear(channels, width, bias=False)
        self.out = nn.Linear(width, heads)
        self.bound = bound
        self.start = unsquash(init, bound)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        nn.init.xavier_uniform_(self.dst.weight)
        nn.init.xavier_uniform_(self.src.weight)
        nn.init.zeros_(self.dst.bias)
        nn.init.zeros_(self.out.weight)
        nn.init.constant_(self.out.bias, self.start)

    def hidden_dst(self, x: Float[Tensor, "M C"]) -> Float[Tensor, "M R"]:
        """U h_i + b1."""
        u: Tensor = self.dst(x)
        return u

    def hidden_src(self, x: Float[Tensor, "N C"]) -> Float[Tensor, "N R"]:
        """W h_j."""
        w: Tensor = self.src(x)
        return w

    def combine(self, u: Float[Tensor, "M R"], w: Float[Tensor, "N R"]) -> Lambda:
        """What the operator takes."""
        return Lambda(u, w, self.out.weight, self.out.bias, self.bound)


class PerHeadLambda(LambdaMode):
    """The modes without a hidden layer: R = 0, one lambda for each head."""

    def hidden_dst(self, x: Float[Tensor, "M C"]) -> Float[Tensor, "M 0"]:
        """Nothing."""
        return x.new_empty(x.shape[0], 0)

    def hidden_src(self, x: Float[Tensor, "N C"]) -> Float[Tensor, "N 0"]:
        """Nothing."""
        return x.new_empty(x.shape[0], 0)

    def combine(self, u: Float[Tensor, "M 0"], w: Float[Tensor, "N 0"]) -> Lambda:
        """What the operator takes."""
        bias, squash = self.head_values()
        return Lambda(u, w, bias.new_empty(bias.numel(), 0), bias, squash)

    @abstractmethod
    def head_values(self) -> tuple[Float[Tensor, "H"], str]:
        """A value for each head, and the function that makes lambda of it."""


class HeadLambda(PerHeadLambda):
    """A learned scalar for each head, the same for all edges."""

    def __init__(self, heads: int, *, init: float, bound: str) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.empty(heads))
        self.bound = bound
        self.start = unsquash(init, bound)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets lambda back to where it starts."""
        nn.init.constant_(self.raw, self.start)

    def head_values(self) -> tuple[Float[Tensor, "H"], str]:
        """The learned scalars before the bound."""
        return self.raw, self.bound


class FixedLambda(PerHeadLambda):
    """One constant, not learned."""

    value: Tensor

    def __init__(self, heads: int, *, init: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.full((heads,), init), persistent=False)

    def reset_parameters(self) -> None:
        """There are none."""

    def head_values(self) -> tuple[Float[Tensor, "H"], str]:
        """The constant."""
        return self.value, "identity"


class ReparamLambda(PerHeadLambda):
    """Differential Transformer's: exp(q1·k1) - exp(q2·k2) + lambda_init, one for all heads.

    arXiv 2410.05258, equation 2; four learned vectors of width D from N(0, 0.1²).
    """

    def __init__(self, heads: int, *, head_width: int, depth: int) -> None:
        super().__init__()
        self.heads = heads
        self.init = reparam_init(depth)
        self.vectors = nn.Parameter(torch.empty(2, 2, head_width))  # [branch, q or k, D]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        nn.init.normal_(self.vectors, std=0.1)

    def head_values(self) -> tuple[Float[Tensor, "H"], str]:
        """The layer's lambda, for each head."""
        first, second = self.vectors.prod(dim=1).sum(dim=-1).exp()
        return (first - second + self.init).expand(self.heads), "identity"


# the settings that each mode reads
_READS = {
    "edge": frozenset({"lam", "lambda_width", "lambda_init", "lambda_bound"}),
    "head": frozenset({"lam", "lambda_init", "lambda_bound"}),
    "fixed": frozenset({"lam", "lambda_init"}),
    "reparam": frozenset({"lam"}),
}


def make_lambda(channels: int, heads: int, settings: LambdaSettings, *, depth: int) -> LambdaMode:
    """The mode that `settings.lam` names; `depth` is the layer's place in the model, from 1.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """
    mode, width, init, bound = settings
    check_choice("lam", mode, _READS)
    check_choice("lambda_bound", bound, _BOUNDS)
    settings.warn_ignored(_READS[mode], because=f"lam = {mode!r}")
    if mode == "edge":
        width = channels // heads if width is None else width
        return EdgeLambda(channels, heads, width=width, init=init, bound=bound)
    if mode == "head":
        return HeadLambda(heads, init=init, bound=bound)
    if mode == "fixed":
        return FixedLambda(heads, init=init)
    return ReparamLambda(heads, head_width=channels // heads, depth=depth)


def reparam_init(depth: int) -> float:
    """lambda_init of layer `depth`, counted from 1: 0.2 at first, towards 0.8."""
    return 0.8 - 0.6 * math.exp(-0.3 * (depth - 1))


def unsquash(value: float, bound: str) -> float:
    """The number that `bound` ("softplus" or "sigmoid") takes to `value`.

    Raises:
        ConfigError: no number does.
    """
    if value <= 0 or (bound == "sigmoid" and value >= 1):
        limits = "0 < lambda_init < 1" if bound == "sigmoid" else "lambda_init > 0"
        raise ConfigError(f"lambda_init = {value} with bound {bound!r}: it must hold {limits}")
    if bound == "sigmoid":
        return math.log(value / (1 - value))
    return math.log(math.expm1(value))
