"""The model as a `torch.export` program, for serving without this package's Python code.

N nodes, F input features, E edges, A attributes of an edge, K outputs.
"""

import io

import torch
from torch import nn
from torch.export import Dim

from dnformer.errors import BackendError
from dnformer.training.build import Sizes

# any will do: what is recorded holds for all
_NODES, _EDGES = 5, 7


def program(model: nn.Module, sizes: Sizes) -> bytes:
    """`model` as an archive that `torch.export.load` reads; nothing in it is pickled.

    The program is the forward pass of a whole graph in evaluation mode. It takes `x [N, F]`, dense
    and in the weights' dtype, `edge_index [2, E]` int64 in any order of the edges, and, where the
    model was trained with edge attributes, `edge_attr [E, A]` by name; it gives the outputs
    `[N, K]`. N and E may differ from call to call. It checks no index. The attention is the
    operator `dnformer::diff_attention`, so that whoever runs it imports `dnformer.ops` first.

    Raises:
        BackendError: torch cannot record the model.
    """
    dtype = next(model.parameters()).dtype
    x = torch.zeros(_NODES, sizes.num_features, dtype=dtype)
    edge_index = torch.arange(2 * _EDGES).reshape(2, _EDGES) % _NODES
    num_edges, keywords = Dim("num_edges"), {}
    dynamic = {"x": {0: Dim("num_nodes")}, "edge_index": {1: num_edges}}
    if getattr(model, "edge_channels", 0):
        keywords["edge_attr"] = torch.zeros(_EDGES, sizes.num_edge_features, dtype=dtype)
        dynamic["edge_attr"] = {0: num_edges}
    try:
        with torch.no_grad():
            recorded = torch.export.export(
                model, (x, edge_index), keywords, dynamic_shapes=dynamic, strict=False
            )
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise BackendError(
            f"torch.export cannot record a {type(model).__name__}: {first}; leave out --program"
        ) from None
    # torch would pickle them
    recorded.example_inputs = None
    archive = io.BytesIO()
    torch.export.save(recorded, archive)
    return archive.getvalue()
