import random as python_random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnformer.config import RunConfig, TuneConfig
from dnformer.errors import ConfigError
from dnformer.parsing import parse
from dnformer.tuning.space import Space, quick

LEAST = {"name": "search", "data": {"uri": "cache/cora"}}


def base(space: dict[str, Any], scheduler: str = "asha", **sections: Any) -> RunConfig:
    tune = {"space": space, "scheduler": scheduler}
    return parse(RunConfig, {**LEAST, **sections, "tune": tune})


def of(space: dict[str, Any], scheduler: str = "asha", **sections: Any) -> Space:
    return Space(base(space, scheduler, **sections))


CONDITIONAL = {
    "optim.decay_factor": {"uniform": [0.1, 0.5], "when": {"optim.schedule": ["step", "plateau"]}},
    "optim.decay_epochs": {"int": [5, 20], "when": {"optim.schedule": "step"}},
    "optim.schedule": {"choice": ["constant", "step", "plateau"], "when": {"model.layers": [2, 3]}},
    "model.layers": {"int": [1, 3]},
}


def test_config_sets_params_and_keeps_the_rest_but_no_search() -> None:
    space = of({"model.heads": {"choice": [1, 4]}}, model={"hidden": 12}, seed=5)
    config = space.config({"model.heads": 4})
    expected = {**LEAST, "seed": 5, "model": {"hidden": 12, "heads": 4}}
    assert config == parse(RunConfig, expected)
    assert config.tune == TuneConfig()


def test_config_that_does_not_fit_together_is_refused() -> None:
    space = of({"model.heads": {"choice": [1, 5]}})
    with pytest.raises(ConfigError, match="hidden 64 is no multiple of heads 5"):
        space.config({"model.heads": 5})


def test_choices_are_as_the_config_holds_them() -> None:
    space = of(
        {
            # YAML reads 1e-3 as text
            "optim.lr": {"choice": ["1e-3", 0.01]},
            "loader.num_neighbors": {"choice": [10, [15, 10]]},
            # no multiple in the base, but in the space
            "model.heads": {"choice": ["3", 2]},
            "model.hidden": {"choice": [48, 64]},
            "optim.clip_norm": {"choice": [None, 1]},
            "data.split": {"choice": [{"column": True}, {"random": [0.5, 0.25, 0.25]}]},
        }
    )
    assert [dimension.choices for dimension in space.dimensions] == [
        (0.001, 0.01),
        ([10], [15, 10]),
        (3, 2),
        (48, 64),
        (None, 1.0),
        ({"column": True}, {"random": [0.5, 0.25, 0.25]}),
    ]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_sample_sets_a_field_where_its_condition_holds_and_nowhere_else(seed: int) -> None:
    params = of(CONDITIONAL).sample(np.random.default_rng(seed))
    expected = {"model.layers"}
    if params["model.layers"] >= 2:
        expected |= {"optim.schedule"}
    schedule = params.get("optim.schedule")
    if schedule in ("step", "plateau"):
        expected |= {"optim.decay_factor"}
    if schedule == "step":
        expected |= {"optim.decay_epochs"}
    assert params.keys() == expected


@given(
    seed=st.integers(0, 2**32),
    low=st.floats(1e-6, 1),
    factor=st.floats(1, 1e4),
    whole=st.integers(1, 50),
    more=st.integers(0, 50),
)
@settings(max_examples=100, deadline=None)
def test_sample_stays_within_the_bounds(
    seed: int, low: float, factor: float, whole: int, more: int
) -> None:
    space = of(
        {
            "optim.lr": {"loguniform": [low, low * factor]},
            "optim.weight_decay": {"uniform": [low, low * factor]},
            "model.layers": {"int": [whole, whole + more]},
            "loader.batch_size": {"logint": [whole, whole + more]},
        }
    )
    params = space.sample(np.random.default_rng(seed))
    assert low <= params["optim.lr"] <= low * factor
    assert low <= params["optim.weight_decay"] <= low * factor
    for path in ("model.layers", "loader.batch_size"):
        assert whole <= params[path] <= whole + more
        assert type(params[path]) is int
    assert parse(RunConfig, space.config(params).dump()) == space.config(params)


def test_sample_draws_each_value_and_each_factor_alike() -> None:
    space = of(
        {
            "model.layers": {"int": [1, 4]},
            "loader.batch_size": {"logint": [1, 3]},
            "optim.lr": {"loguniform": [1e-4, 1e-2]},
            "model.norm": {"choice": ["pre", "post"]},
        }
    )
    random = np.random.default_rng(0)
    drawn = [space.sample(random) for _ in range(2000)]
    counts = np.bincount([params["model.layers"] for params in drawn], minlength=5)
    assert counts[0] == 0
    assert all(abs(count - 500) < 70 for count in counts[1:])
    # from 0.5 to 3.5: log 3, log 5/3 and log 7/5 of log 7
    sizes = np.bincount([params["loader.batch_size"] for params in drawn], minlength=4)
    np.testing.assert_allclose(sizes / 2000, [0, 0.565, 0.2625, 0.173], atol=0.03)
    assert abs(sum(params["optim.lr"] < 1e-3 for params in drawn) - 1000) < 80
    assert abs(sum(params["model.norm"] == "pre" for params in drawn) - 1000) < 80


def test_sample_is_its_generators_alone() -> None:
    space = of(CONDITIONAL)
    before = (python_random.getstate(), np.random.get_state()[1].tolist())
    first = [space.sample(np.random.default_rng(3)) for _ in range(2)]
    assert first[0] == first[1]
    assert (python_random.getstate(), np.random.get_state()[1].tolist()) == before


def test_grid_has_every_combination_the_last_field_fastest() -> None:
    space = of({"model.norm": {"choice": ["pre", "post"]}, "model.layers": {"int": [1, 2]}})
    assert space.grid() == [
        {"model.norm": "pre", "model.layers": 1},
        {"model.norm": "pre", "model.layers": 2},
        {"model.norm": "post", "model.layers": 1},
        {"model.norm": "post", "model.layers": 2},
    ]


def test_grid_has_a_combination_once_where_a_condition_does_not_hold() -> None:
    space = of(
        {
            "optim.decay_epochs": {"logint": [5, 6], "when": {"optim.schedule": "step"}},
            "optim.schedule": {"choice": ["constant", "step"]},
        }
    )
    assert space.grid() == [
        {"optim.schedule": "constant"},
        {"optim.schedule": "step", "optim.decay_epochs": 5},
        {"optim.schedule": "step", "optim.decay_epochs": 6},
    ]


def test_grid_leaves_out_what_is_no_valid_config() -> None:
    space = of({"model.hidden": {"choice": [6, 8]}, "model.heads": {"choice": [1, 3, 4]}})
    assert [tuple(params.values()) for params in space.grid()] == [(6, 1), (6, 3), (8, 1), (8, 4)]


@pytest.mark.parametrize("kind", ["uniform", "loguniform"])
def test_grid_of_a_range_of_numbers_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"optim.lr: search grid cannot try .* a {kind}"):
        of({"optim.lr": {kind: [0.1, 0.2]}}).grid()


def test_grid_of_too_many_is_refused() -> None:
    space = of({"model.layers": {"int": [1, 10**9]}})
    with pytest.raises(ConfigError, match="more than 10,000 combinations"):
        space.grid()


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        pytest.param({}, "tune.space is empty", id="empty"),
        pytest.param({"model.hedas": {"int": [1, 2]}}, "did you mean 'model.heads'", id="field"),
        pytest.param({"modle.heads": {"int": [1, 2]}}, "did you mean 'model.heads'", id="section"),
        pytest.param({"model": {"choice": [{}]}}, "unknown field 'model'", id="whole-section"),
        pytest.param({"model.heads.x": {"choice": [1]}}, "is a part of model.heads", id="below"),
        pytest.param(
            {"data.split.planetoid": {"int": [5, 20]}}, "give whole values of data.split", id="part"
        ),
        pytest.param({"train.workers": {"choice": [1]}}, "not what they learn", id="runtime"),
        pytest.param({"storage_path": {"choice": ["a"]}}, "not what they learn", id="storage"),
        pytest.param({"data.uri": {"choice": ["a"]}}, "not what they learn", id="data"),
        pytest.param({"tune.num_trials": {"choice": [1]}}, "not what they learn", id="tune"),
        pytest.param({"name": {"choice": ["a"]}}, "each trial has its own", id="name"),
        pytest.param({"train.monitor": {"choice": ["val/loss"]}}, "compared by", id="monitor"),
        pytest.param({"train.epochs": {"int": [1, 2]}}, "use scheduler none", id="epochs"),
        pytest.param({"model.heads": {"choice": [2, 0]}}, "greater than or equal to 1", id="value"),
        pytest.param({"model.norm": {"choice": ["mid"]}}, "'post' or 'pre'", id="literal"),
        pytest.param({"model.dropout": {"uniform": [0, 1]}}, "less than 1; found 1", id="high"),
        pytest.param({"model.layers": {"int": [0, 3]}}, "to 1; found 0", id="low"),
        pytest.param(
            {"model.layers": {"uniform": [1, 3]}},
            "^tune.space: model.layers: .*fraction",
            id="inside",
        ),
        pytest.param(
            {"optim.lr": {"choice": ["1e-3", 0.001]}}, "choice 0.001 stands twice", id="twice"
        ),
        pytest.param(
            {"model.heads": {"choice": [3, 5]}},
            "none of 100 drawn is a valid config; .*hidden 64 is no multiple of heads",
            id="never-valid",
        ),
    ],
)
def test_space_refuses(space: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        of(space)
    assert str(caught.value).startswith("tune.space")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        pytest.param({"optim.name": "adam"}, "when optim.name: no field of the space", id="absent"),
        pytest.param({"model.norm": "mid"}, "'post' or 'pre'; found 'mid'", id="no-value"),
        pytest.param({"model.norm": "post"}, "when model.norm: it is never post", id="never"),
        pytest.param({"model.norm": []}, "it is never one of ", id="none"),
        pytest.param({"model.layers": [2, 7]}, "when model.layers: it is never 7", id="beyond"),
        pytest.param({"model.dropout": 0.5}, "`when` needs a choice or int", id="range"),
        pytest.param({"optim.lr": 0.1}, "in a circle, or to one: optim.lr", id="itself"),
        pytest.param({"seed": 1}, "in a circle, or to one: optim.lr, seed", id="circle"),
    ],
)
def test_space_refuses_a_condition(when: dict[str, Any], expected: str) -> None:
    space = {
        "optim.lr": {"choice": [0.1], "when": when},
        "model.norm": {"choice": ["pre"]},
        "model.layers": {"int": [1, 3]},
        "model.dropout": {"uniform": [0, 0.5]},
        "seed": {"choice": [1], "when": {"optim.lr": 0.1}},
    }
    with pytest.raises(ConfigError, match=expected):
        of(space)


@pytest.mark.parametrize(
    "path", ["model.heads", "optim.name", "optim.ema_decay", "loader.batch_size", "seed"]
)
def test_space_of_pbt_refuses_what_cannot_change_in_a_run(path: str) -> None:
    values = {"optim.name": ["adam"], "optim.ema_decay": [0.9]}.get(path, [1])
    of({path: {"choice": values}})
    with pytest.raises(ConfigError, match=f"{path}: scheduler pbt changes"):
        of({path: {"choice": values}}, scheduler="pbt")


def test_space_of_pbt_takes_what_can() -> None:
    entries = {
        "optim.lr": {"loguniform": [1e-4, 1e-2]},
        "optim.weight_decay": {"loguniform": [1e-5, 1e-3]},
        "model.dropout": {"uniform": [0, 0.8]},
        "model.attention_dropout": {"uniform": [0, 0.5]},
        "loss.label_smoothing": {"choice": [0, 0.1]},
    }
    assert len(of(entries, scheduler="pbt").dimensions) == 5


def test_space_of_scheduler_none_takes_epochs() -> None:
    space = of({"train.epochs": {"choice": [5, 10]}}, scheduler="none")
    assert [space.config(params).train.epochs for params in space.grid()] == [5, 10]


def test_valid_gives_up_after_100_draws() -> None:
    space = of({"model.heads": {"choice": [1, 5]}})
    draws = iter([{"model.heads": 5}] * 100 + [{"model.heads": 1}])
    with pytest.raises(ConfigError, match="none of 100 drawn"):
        next(space.valid(draws))
    assert next(draws) == {"model.heads": 1}


def test_quick_is_the_papers_space() -> None:
    given = base({"model.norm": {"choice": ["pre"]}}, model={"hidden": 24}, seed=3)
    config = quick(given)
    assert config.model_copy(update={"tune": given.tune}) == given
    assert config.tune.scheduler == given.tune.scheduler
    kinds = {d.path: (d.kind, d.choices, d.low, d.high) for d in Space(config).dimensions}
    assert kinds == {
        "model.heads": ("choice", (1, 2, 4, 8), 0, 0),
        "model.layers": ("int", (), 1, 6),
        "optim.lr": ("loguniform", (), 1e-4, 1e-2),
    }


def test_quick_has_no_fewer_layers_than_hops() -> None:
    config = base({}, loader={"num_neighbors": [15, 10]}, model={"layers": 3})
    assert quick(config).tune.space["model.layers"].bounds == (2, 6)


def test_space_tries_options_of_the_model() -> None:
    space = of({"model.options.alpha": {"uniform": [0.1, 0.5]}}, model={"name": "appnp"})
    config = space.config({"model.options.alpha": 0.25})
    assert config.model.options.model_dump() == {"alpha": 0.25, "mlp_layers": 2}


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        pytest.param({"model.options.norm": {"choice": ["none"]}}, "unknown field", id="unknown"),
        pytest.param({"model.options.alpha": {"uniform": [0.1, 1.5]}}, "alpha: input should be",
                     id="value"),
        pytest.param({"model.name": {"choice": ["gcn"]}}, "each model has options of its own",
                     id="name"),
    ],
)  # fmt: skip
def test_space_refuses_options_that_the_model_does_not_take(
    space: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        of(space, model={"name": "appnp"})


def test_quick_tries_no_heads_of_a_model_without() -> None:
    paths = quick(parse(RunConfig, {**LEAST, "model": {"name": "gcn"}})).tune.space.keys()
    assert paths == {"model.layers", "optim.lr"}
