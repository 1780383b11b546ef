"""Layer-wise outputs equal a full forward pass on the seven real graphs, and on several workers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dnformer.config import CacheConfig, DataConfig, ModelConfig, RunConfig
from dnformer.data.graph import open_graph
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.raw import RawSource
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.group import Group
from dnformer.loader import FullLoader
from dnformer.prediction.computing import LayerByLayer, Room, Work
from dnformer.prediction.launch import start
from dnformer.prediction.options import PredictConfig
from dnformer.training.build import build_model

SHARED = Path(__file__).parents[2].parent / "shared"
GRAPHS = [
    "Planetoid/Cora", "Planetoid/CiteSeer", "Planetoid/PubMed", "Amazon/Computers", "Amazon/Photo",
    "Coauthor/CS", "Coauthor/Physics",
]  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", GRAPHS)
def test_layers_equal_a_full_forward_pass(name, tmp_path):
    ingest(RawSource(name=name, root=str(SHARED / "data")), str(tmp_path / "data"))
    graph = open_graph(tmp_path / "data", cache_dir=tmp_path / "stores")
    config = RunConfig(
        name="run", data=DataConfig(uri=graph.uri), cache=CacheConfig(),
        model=ModelConfig(hidden=16, layers=3, heads=2, norm="pre"),
    )  # fmt: skip
    model = build_model(config, graph).eval()
    # lambda does not depend on the nodes at first
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.lam.out.weight)
    everyone = np.arange(graph.num_nodes)
    batch = next(iter(FullLoader(graph, everyone, sparse=True)))
    with torch.no_grad():
        expected = model(batch.x, batch.edge_index)
    some = np.unique(np.random.default_rng(0).integers(0, graph.num_nodes, 5))
    for wanted, memory in ((None, 0), (None, 1 << 40), (some, 0)):
        work = Work(model, config, graph, Group(), Room(memory, tmp_path), lambda done: None)
        layers = LayerByLayer(work, wanted, embeddings=False, layers=False)
        layers.prepare()
        found = layers.outputs(range(graph.num_nodes) if wanted is None else wanted).logits
        nodes = everyone if wanted is None else wanted
        torch.testing.assert_close(found, expected[nodes], rtol=1e-5, atol=1e-5)


@pytest.mark.ray
@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_two_workers_give_the_same_bits(make_run, tmp_path):
    # three ranges of each layer, and four parts
    source = SyntheticSource(nodes=9000, classes=3, features=8, degree=4)
    ingest(source, str(tmp_path / "data"))
    run = make_run("shared-out", data={"uri": str(tmp_path / "data")}, loader={"batch_size": 1000})
    one, two = (
        start(
            PredictConfig(run=run, out=str(tmp_path / f"by-{workers}"), layers=True,
                          workers=workers),
            part_rows=2500,
        )
        for workers in (0, 2)
    )  # fmt: skip
    assert two.table().equals(one.table())
    assert two.manifest.files == one.manifest.files
    assert two.metrics == one.metrics
    assert two.manifest.comparison == one.manifest.comparison
    assert sorted(path.name for path in Path(two.uri).iterdir()) == ["manifest.json", "parts"]
