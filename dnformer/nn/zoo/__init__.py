"""The models that DNFormer is compared with, one a file, trained by the same code.

`ZOO[name](shared, options)` makes one; `options` is the section `config.zoo.OPTIONS[name]`.
"""

from dnformer.nn.node_model import NodeModel
from dnformer.nn.zoo.gcn import GCN
from dnformer.nn.zoo.shared import Shared, ZooModel

__all__ = ["GCN", "ZOO", "Shared", "ZooModel"]

# by `model.name`
ZOO: dict[str, type[NodeModel]] = {
    "gcn": GCN,
}
