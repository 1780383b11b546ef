"""What holds of every model of the zoo, whatever it computes."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from dnformer.config.zoo import OPTIONS
from dnformer.nn.node_model import NodeModel
from dnformer.nn.zoo import ZOO, Shared

from ..helpers import EDGES, features, sampled_block

SHARED = Shared(5, 3, hidden=8, layers=2, heads=2, dropout=0.0)
# settings in which a model has parts that it does not have by default
MORE: dict[str, list[dict[str, Any]]] = {
    "gcn": [{"residual": True, "norm": "layer"}, {"norm": "batch"}],
    "gat": [{"residual": True, "norm": "batch"}],
    "sage": [{"residual": True, "norm": "layer"}],
    "appnp": [{"mlp_layers": 1, "alpha": 0.5}],
    "sgformer": [{"norms": True, "value_map": True, "alpha": 1.0}],
    "polynormer": [{"local_epochs": 0}],
    "dualformer": [{"conv": "gcn"}, {"conv": "appnp"}],
    "difftransformer": [{"lambda": "sigmoid"}],
    "stagnn": [
        {"transition": "row", "combine": "sum", "hop_gates": False},
        {"global_term": True},
    ],
}
CASES = [
    pytest.param(name, options, id="-".join([name, *options]))
    for name in ZOO
    for options in [{}, *MORE.get(name, [])]
]
all_models = pytest.mark.parametrize(("name", "options"), CASES)


def make(name: str, options: dict[str, Any], shared: Shared = SHARED) -> NodeModel:
    torch.manual_seed(0)
    return ZOO[name](shared, OPTIONS[name](**options)).double()


def test_zoo_has_a_section_of_options_for_each_model() -> None:
    assert ZOO.keys() | {"dnformer"} == OPTIONS.keys()
    for name, model in ZOO.items():
        assert model.whole_graph is OPTIONS[name].whole_graph


@all_models
def test_model_trains_every_parameter(name: str, options: dict[str, Any]) -> None:
    model = make(name, options)
    model.set_epoch(0)
    out = model(features(), EDGES)
    assert out.shape == (8, 3)
    (out * torch.linspace(-1, 1, 24, dtype=torch.float64).view(8, 3)).sum().backward()
    for parameter, value in model.named_parameters():
        if value.requires_grad:
            assert value.grad is not None, parameter
            assert value.grad.isfinite().all(), parameter


@all_models
def test_model_needs_no_edge(name: str, options: dict[str, Any]) -> None:
    model = make(name, options)
    out = model(features(), EDGES[:, :0])
    assert out.isfinite().all()
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@all_models
def test_model_is_equivariant_to_the_order_of_nodes_and_edges(
    name: str, options: dict[str, Any]
) -> None:
    model, x = make(name, options).eval(), features()
    order = torch.tensor([3, 7, 0, 5, 1, 6, 2, 4])
    place = order.argsort()
    edges = place[EDGES][:, torch.randperm(EDGES.shape[1])]
    assert torch.allclose(model(x[order], edges), model(x, EDGES)[order], atol=1e-10)


@all_models
def test_model_takes_an_edge_index_of_the_loader(name: str, options: dict[str, Any]) -> None:
    model, x = make(name, options).eval(), features()
    grouped = EDGES[:, EDGES[1].argsort(stable=True)]
    given = EdgeIndex(grouped, sparse_size=(8, 8), sort_order="col")
    assert torch.allclose(model(x, given), model(x, EDGES), atol=1e-12)


@all_models
def test_model_gives_the_same_from_sparse_features(name: str, options: dict[str, Any]) -> None:
    model, x = make(name, options).eval(), features().relu()
    if not model.sparse_input:
        pytest.skip("it takes no sparse features")
    with warnings.catch_warnings():
        # torch says once a process that CSR tensors are in beta
        warnings.simplefilter("ignore", UserWarning)
        sparse = x.to_sparse_csr()
    assert torch.allclose(model(sparse, EDGES), model(x, EDGES), atol=1e-10)


@all_models
def test_model_gives_seeds_of_a_complete_batch_what_the_whole_graph_gives(
    name: str, options: dict[str, Any]
) -> None:
    model, x = make(name, options).eval(), features()
    if mixes_all_nodes(model):
        pytest.skip("it attends to all nodes")
    seeds = [4, 0, 7]
    nodes, edges, num_nodes, num_edges = sampled_block(EDGES, seeds, 2)
    degree = {"degree": degrees()[nodes]} if model.uses_degrees else {}
    found = model(x[nodes], edges, num_nodes, num_edges, **degree)
    assert torch.allclose(found[: len(seeds)], model(x, EDGES)[seeds], atol=1e-10)


@all_models
def test_model_computes_in_mixed_precision(name: str, options: dict[str, Any]) -> None:
    model, x = make(name, options).float().eval(), features(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = model(x, EDGES)
    assert torch.allclose(narrow.float(), model(x, EDGES), atol=0.1)


@all_models
def test_model_drops_input_features_in_training_only(name: str, options: dict[str, Any]) -> None:
    model, x = make(name, options, SHARED._replace(input_dropout=0.5)), features()
    torch.manual_seed(1)
    assert not torch.allclose(model(x, EDGES), model(x, EDGES))
    model.eval()
    assert torch.equal(model(x, EDGES), model(x, EDGES))


@all_models
def test_model_divides_features_by_their_sum(name: str, options: dict[str, Any]) -> None:
    model = make(name, options, SHARED._replace(input_norm="row")).eval()
    plain, x = make(name, options).eval(), features().abs() + 1
    assert torch.allclose(model(x, EDGES), plain(x / x.sum(1, keepdim=True), EDGES), atol=1e-10)


def mixes_all_nodes(model: NodeModel) -> bool:
    """Whether features of one node change the output of one that no path leads to."""
    x = features().requires_grad_()
    model(x, EDGES)[0].sum().backward()
    assert x.grad is not None
    return bool(x.grad[7].any())


def degrees() -> Tensor:
    """In-degrees of `EDGES`, its one loop not counted."""
    return EDGES[1, EDGES[0] != EDGES[1]].bincount(minlength=8)
