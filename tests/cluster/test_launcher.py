"""What `ray up` would say of the launcher's configs, before it starts a machine."""

import copy
from pathlib import Path

import pytest
import yaml
from jsonschema import ValidationError
from ray.autoscaler._private.util import prepare_config, validate_config

LAUNCHER = Path(__file__).parents[2] / "cluster" / "launcher"
FILES = sorted(LAUNCHER.glob("*.yaml"))


def config(name):
    return yaml.safe_load((LAUNCHER / f"{name}.yaml").read_text())


def check(given):
    """Ray's own schema and checks, with its defaults filled in."""
    prepared = prepare_config(copy.deepcopy(given))
    validate_config(prepared)
    return prepared


def test_launcher_has_its_three_targets():
    assert [file.stem for file in FILES] == ["aws", "gcp", "local"]


@pytest.mark.parametrize("name", ["aws", "gcp", "local"])
def test_ray_takes_it(name):
    prepared = check(config(name))
    workers = [kind for kind in prepared["available_node_types"].values() if kind["max_workers"]]
    assert len(workers) == 1
    assert prepared["provider"]["type"] == name


@pytest.mark.parametrize("name", ["aws", "gcp", "local"])
def test_ray_is_started_with_a_token_and_a_closed_dashboard(name):
    given = config(name)
    assert given["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    for part in ("head", "worker"):
        start = given[f"{part}_start_ray_commands"][-1]
        assert "RAY_AUTH_MODE=token" in start
        assert "RAY_USAGE_STATS_ENABLED=0" in start
        assert "--metrics-export-port=8080" in start
    assert "--dashboard-host=127.0.0.1" in given["head_start_ray_commands"][-1]


@pytest.mark.parametrize("name", ["aws", "gcp"])
def test_only_workers_are_spot_and_train(name):
    kinds = config(name)["available_node_types"]
    assert kinds["head"]["resources"] == {"CPU": 0}
    assert "spot" not in str(kinds["head"]).lower()
    assert "spot" in str(kinds["worker"]).lower()


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(max_worker=3),
        lambda c: c.update(idle_timeout_minutes="ten"),
        lambda c: c["available_node_types"]["worker"].update(minworkers=1),
        lambda c: c["auth"].update(user="me"),
        lambda c: c.update(initialization_commands="make"),
    ],
    ids=["misspelt", "type", "misspelt-inside", "misspelt-auth", "type-of-commands"],
)
def test_broken_config_is_refused(change):
    given = config("aws")
    change(given)
    with pytest.raises(ValidationError):
        check(given)
