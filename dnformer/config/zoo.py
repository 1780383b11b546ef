"""What a model of the zoo has of its own: `model.options`, a section for each model.

Beside it every model reads the shared fields of section `model`.
"""

from typing import ClassVar, Literal

from pydantic import Field

from dnformer.parsing import Section


class ModelOptions(Section):
    """Base of the sections.

    Attributes:
        whole_graph: the model is defined on the whole graph only.
        splits_hidden: its heads are `hidden / heads` wide.
        unread: shared fields of section `model` that mean nothing to it.
    """

    whole_graph: ClassVar[bool] = False
    splits_hidden: ClassVar[bool] = False
    unread: ClassVar[frozenset[str]] = frozenset()


class DNFormerOptions(ModelOptions):
    """None: all fields of section `model` are DNFormer's."""

    splits_hidden: ClassVar[bool] = True


class ConvOptions(ModelOptions):
    """Of the tuned convolutions: each layer is conv (+ linear map), norm, activation, dropout."""

    residual: bool = Field(False, description="adds a linear map of the layer's input")
    norm: Literal["none", "layer", "batch"] = Field("none", description="after each layer")


class GCNOptions(ConvOptions):
    """Of gcn."""

    unread: ClassVar[frozenset[str]] = frozenset({"heads"})


class GATOptions(ConvOptions):
    """Of gat."""

    splits_hidden: ClassVar[bool] = True


class SAGEOptions(ConvOptions):
    """Of sage."""

    unread: ClassVar[frozenset[str]] = frozenset({"heads"})


class APPNPOptions(ModelOptions):
    """Of appnp, which propagates `model.layers` times."""

    unread: ClassVar[frozenset[str]] = frozenset({"heads"})

    alpha: float = Field(0.1, ge=0, le=1, description="share of teleport in each step")
    mlp_layers: int = Field(2, ge=1, description="linear maps before the propagation")


class SGCOptions(ModelOptions):
    """Of sgc: one linear map of features that were propagated `model.layers` times."""

    unread: ClassVar[frozenset[str]] = frozenset({"hidden", "heads", "dropout", "activation"})


class STAGNNOptions(ModelOptions):
    """Of stagnn, whose subtrees are `model.layers` deep."""

    splits_hidden: ClassVar[bool] = True

    transition: Literal["column", "row"] = Field(
        "column", description="A D^-1: a step of the walk; D^-1 A: its mean over neighbours"
    )
    hop_gates: bool = Field(True, description="each head learns how much each hop is its own")
    combine: Literal["concat", "sum"] = Field(
        "concat", description="heads: concatenated and mapped to classes, or added up"
    )
    global_term: bool = Field(
        False, description="adds attention to all nodes, with a weight that is learned from 1 on"
    )


class NodeFormerOptions(ModelOptions):
    """Of nodeformer, each of whose heads is `hidden` wide."""

    unread: ClassVar[frozenset[str]] = frozenset({"activation"})

    random_features: int = Field(30, ge=1, description="features of the softmax kernel")
    gumbel_samples: int = Field(10, ge=1, description="draws of neighbours, in training")
    tau: float = Field(0.25, gt=0, description="temperature of attention and of the draws")
    bias_order: int = Field(
        2,
        ge=0,
        description="powers of the adjacency matrix with a learned weight: 1 edge, up to 2, up to "
        "4, ..; the second may hold most pairs of a dense graph",
    )
    bias_form: Literal["sigmoid", "identity"] = Field(
        "sigmoid", description="of the number that each power and head learns"
    )
    edge_loss: float = Field(
        1, ge=0, description="weight in the loss of how unlikely attention finds the edges; 0: none"
    )


class SGFormerOptions(ModelOptions):
    """Of sgformer: `model.layers` of a GCN beside attention whose heads are `hidden` wide."""

    attention_layers: int = Field(1, ge=1, description="layers of attention")
    attention_dropout: float = Field(0.2, ge=0, lt=1, description="after each of them")
    graph_weight: float = Field(0.8, ge=0, le=1, description="share of the GCN")
    alpha: float = Field(
        0.5, ge=0, le=1, description="share of attention in its layer, the rest is its input; the "
        "published commands come to 1"
    )  # fmt: skip
    norms: bool = Field(False, description="LayerNorm of attention, BatchNorm in the GCN")
    value_map: bool = Field(False, description="attention has values of its own, not its input")


class PolynormerOptions(ModelOptions):
    """Of polynormer: `model.layers` of local attention, then some of global attention."""

    splits_hidden: ClassVar[bool] = True

    global_layers: int = Field(2, ge=1, description="layers of global attention")
    local_epochs: int = Field(
        100, ge=0, description="epochs before global attention begins; train.patience must outlast "
        "them"
    )  # fmt: skip


class DUALFormerOptions(ModelOptions):
    """Of dualformer: attention between features, then `model.layers` of a graph convolution."""

    attention_layers: int = Field(1, ge=1, description="layers of attention")
    attention_dropout: float = Field(0.5, ge=0, lt=1, description="before and after each of them")
    alpha: float = Field(0.1, ge=0, le=1, description="share of attention in its layer")
    conv: Literal["sgc", "gcn", "appnp"] = Field("sgc", description="the graph convolution")
    teleport: float = Field(0.1, ge=0, le=1, description="of appnp")


class DiffTransformerOptions(ModelOptions):
    """Of difftransformer, whose `model.layers` attend over all nodes of a batch."""

    unread: ClassVar[frozenset[str]] = frozenset({"activation"})

    lam: Literal["reparam", "sigmoid"] = Field(
        "reparam",
        alias="lambda",
        description="one number for each layer, or one for each node and head (version 2)",
    )
    max_nodes: int = Field(16_384, ge=1, description="nodes of a batch at most; time is quadratic")


# by the model's name
OPTIONS: dict[str, type[ModelOptions]] = {
    "dnformer": DNFormerOptions,
    "gcn": GCNOptions,
    "gat": GATOptions,
    "sage": SAGEOptions,
    "appnp": APPNPOptions,
    "sgc": SGCOptions,
    "stagnn": STAGNNOptions,
    "nodeformer": NodeFormerOptions,
    "sgformer": SGFormerOptions,
    "polynormer": PolynormerOptions,
    "dualformer": DUALFormerOptions,
    "difftransformer": DiffTransformerOptions,
}
