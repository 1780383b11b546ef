"""The models that DNFormer is compared with, one a file, trained by the same code.

`ZOO[name](shared, options)` makes one; `options` is the section `config.zoo.OPTIONS[name]`.
"""

from dnformer.nn.node_model import NodeModel
from dnformer.nn.zoo.appnp import APPNP
from dnformer.nn.zoo.difftransformer import DiffTransformer
from dnformer.nn.zoo.dualformer import DUALFormer
from dnformer.nn.zoo.gat import GAT
from dnformer.nn.zoo.gcn import GCN
from dnformer.nn.zoo.nodeformer import NodeFormer
from dnformer.nn.zoo.polynormer import Polynormer
from dnformer.nn.zoo.sage import SAGE
from dnformer.nn.zoo.sgc import SGC
from dnformer.nn.zoo.sgformer import SGFormer
from dnformer.nn.zoo.shared import Shared, ZooModel
from dnformer.nn.zoo.stagnn import STAGNN

__all__ = [
    "APPNP",
    "GAT",
    "GCN",
    "SAGE",
    "SGC",
    "STAGNN",
    "ZOO",
    "DUALFormer",
    "DiffTransformer",
    "NodeFormer",
    "Polynormer",
    "SGFormer",
    "Shared",
    "ZooModel",
]

# by `model.name`
ZOO: dict[str, type[NodeModel]] = {
    "gcn": GCN,
    "gat": GAT,
    "sage": SAGE,
    "appnp": APPNP,
    "sgc": SGC,
    "stagnn": STAGNN,
    "nodeformer": NodeFormer,
    "sgformer": SGFormer,
    "polynormer": Polynormer,
    "dualformer": DUALFormer,
    "difftransformer": DiffTransformer,
}
