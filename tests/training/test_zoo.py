"""Every model of the zoo through the trainer that DNFormer has."""

from typing import Any

import pytest

from dnformer.config.zoo import OPTIONS
from dnformer.nn.zoo import ZOO
from dnformer.training.launch import evaluate, repeat, train


@pytest.mark.parametrize("kind", ["full", "neighbor"])
@pytest.mark.parametrize("name", ZOO)
def test_train_of_a_zoo_model_is_what_evaluate_gives(
    name: str, kind: str, make_config: Any, tmp_path: Any
) -> None:
    if OPTIONS[name].whole_graph and kind == "neighbor":
        pytest.skip("it is defined on the whole graph only")
    run = make_config(
        tmp_path, loader={"kind": kind}, model={"name": name, **readable(name)},
        train={"epochs": 2},
    )  # fmt: skip
    result = train(run)
    assert result["epochs"] == 2
    again = evaluate(result["run"])
    assert again["test"] == result["test"]
    assert again["val"] == result["val"]


def test_train_of_a_zoo_model_goes_on_where_it_stopped(make_config: Any, tmp_path: Any) -> None:
    model = {"name": "sage", "dropout": 0.2, "heads": 2, "options": {"norm": "batch"}}
    whole = train(make_config(tmp_path / "whole", model=model, train={"epochs": 4}))
    begun = {"epochs": 4, "stop_after": 2}
    first = train(make_config(tmp_path, name="first", model=model, train=begun))
    second = {"epochs": 4, "continue_from": first["run"]}
    resumed = train(make_config(tmp_path, name="second", model=model, train=second))
    assert resumed["test"] == whole["test"]
    assert resumed["val"] == whole["val"]


def test_sampled_evaluation_of_a_zoo_model_takes_its_hops(make_config: Any, tmp_path: Any) -> None:
    # with every neighbour drawn it is exact evaluation
    found = []
    for mode in ("exact", "sampled"):
        run = make_config(
            tmp_path, name=mode, loader={"num_neighbors": -1}, eval={"mode": mode},
            model={"name": "appnp", "layers": 3}, train={"epochs": 2},
        )  # fmt: skip
        found.append(train(run)["test"])
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_repeat_of_a_zoo_model(make_config: Any, tmp_path: Any) -> None:
    run = make_config(tmp_path, model={"name": "gcn"}, train={"epochs": 1})
    assert len(repeat(run, 2)["values"]) == 2


def readable(name: str) -> dict[str, Any]:
    """Of the test's settings those that the model reads; the others at their defaults."""
    small = {"hidden": 8, "dropout": 0.2}
    default = {"hidden": 64, "dropout": 0.5}
    return {key: default[key] if key in OPTIONS[name].unread else small[key] for key in small}
