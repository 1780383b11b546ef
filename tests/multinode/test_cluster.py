"""Ray on several hosts for real: a head and two nodes in network namespaces."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from harness.cluster import Cluster, Node
from harness.network import Network
from harness.training import Training

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900), pytest.mark.usefixtures("namespaces")]

EPOCHS, STEPS_PER_EPOCH, EVERY = 12, 10, 7
ADDRESSES = """
import json, ray
ray.init(log_to_driver=False, logging_level="ERROR")
print(json.dumps(sorted(n["NodeManagerAddress"] for n in ray.nodes() if n["Resources"].get("CPU"))))
"""


@pytest.fixture(scope="module")
def cluster(namespaces) -> Iterator[tuple[Cluster, list[Node]]]:
    with Network() as network, Cluster(network) as cluster:
        yield cluster, cluster.add_nodes(2)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 epochs of 10 steps, a checkpoint every 7."""
    from dnformer.data.ingest.run import ingest
    from dnformer.data.sources.synthetic import SyntheticSource

    folder = tmp_path_factory.mktemp("multinode")
    ingest(SyntheticSource(nodes=1000, classes=4, features=16), str(folder / "data"))
    values = {
        "name": "run",
        "storage_path": str(folder / "runs"),
        "data": {"uri": str(folder / "data"), "split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"batch_size": 30, "num_neighbors": [5, 3]},
        "model": {"hidden": 16},
        "train": {"epochs": EPOCHS, "workers": 2, "threads": 1, "log_every": 1},
        "checkpoint": {"every_steps": EVERY, "every_epochs": 1000},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    return folder / "run.yaml"


def test_cluster_has_a_node_on_each_host(cluster):
    running, nodes = cluster
    found = json.loads(running.ask([sys.executable, "-c", ADDRESSES]))
    assert found == [node.host.address for node in nodes]


def test_train_goes_on_when_a_worker_is_killed(cluster, config):
    running, nodes = cluster
    folder = config.parent
    run, log = str(folder / "runs" / "run"), folder / "driver.log"
    with Training(running, config, [], run=run, log=log) as training:
        training.wait_for_step(3 * EVERY)
        [victim] = nodes[0].workers()
        assert len(nodes[1].workers()) == 1, "each node has one of the two workers"
        os.kill(victim, signal.SIGKILL)
        assert training.wait() == 0, training.tail()
        result, files = training.result(), training.files()
    assert result["epochs"] == EPOCHS
    assert len(files.starts) == 2
    assert 3 * EVERY - EVERY <= files.starts[1].first <= files.starts[0].last
    assert files.repeated <= EVERY
    assert files.starts[1].last == EPOCHS * STEPS_PER_EPOCH
    assert files.incomplete == []
