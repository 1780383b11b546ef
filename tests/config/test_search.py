from typing import Any

import pytest

from dnformer.config import Entry, RunConfig, TuneConfig
from dnformer.errors import ConfigError
from dnformer.parsing import leaves, override, parse

LEAST = {"name": "run", "data": {"uri": "cache/cora"}}


@pytest.mark.parametrize(
    ("given", "kind", "bounds"),
    [
        pytest.param({"choice": [4]}, "choice", None, id="choice"),
        pytest.param({"int": [1, 6]}, "int", (1, 6), id="int"),
        pytest.param({"logint": [1, 64]}, "logint", (1, 64), id="logint"),
        pytest.param({"uniform": [0, 0.5]}, "uniform", (0.0, 0.5), id="uniform"),
        # YAML reads 1e-4 as text
        pytest.param({"loguniform": ["1e-4", 1]}, "loguniform", (1e-4, 1.0), id="loguniform"),
        pytest.param({"int": [3, 3]}, "int", (3, 3), id="one-value"),
    ],
)
def test_entry_has_a_kind_and_bounds(
    given: dict[str, Any], kind: str, bounds: tuple[float, float] | None
) -> None:
    entry = parse(Entry, given)
    assert (entry.kind, entry.bounds) == (kind, bounds)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, "give exactly one of choice, int, .*; found none", id="none"),
        pytest.param(
            {"int": [1, 2], "choice": [1]}, r"exactly one .* found \['choice', 'int'\]", id="two"
        ),
        pytest.param({"choice": []}, "choice: .* at least 1 item", id="empty-choice"),
        pytest.param({"int": [2, 1]}, r"int \[2, 1\]: the low end is above the high", id="order"),
        pytest.param({"int": [1, 2.5]}, "int.1: .*fractional part", id="fraction"),
        pytest.param({"int": [1]}, "int.1 is required", id="one-bound"),
        pytest.param({"loguniform": [0, 1]}, r"loguniform \[0.0, 1.0\]: both .* above 0", id="log"),
        pytest.param({"uniform": [0, float("inf")]}, "uniform.1: .* finite number", id="infinite"),
        pytest.param({"choise": [1]}, "unknown key 'choise'; did you mean 'choice'", id="key"),
    ],
)
def test_entry_refuses(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        parse(Entry, given, name="entry")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"objectives": []}, "objectives: .* at least 1 item", id="no-objective"),
        pytest.param({"objectives": ["metric", "metric"]}, "one stands twice", id="twice"),
        pytest.param({"objectives": ["parameters"]}, "the first is `metric`", id="no-metric"),
        pytest.param(
            {"objectives": ["metric", "parameters"]},
            "2 objectives need search: optuna and scheduler: none",
            id="several-stopped-early",
        ),
        pytest.param(
            {
                "objectives": ["metric", "parameters"],
                "search": "random",
                "scheduler": "none",
            },
            "2 objectives need search: optuna",
            id="several-at-random",
        ),
    ],
)
def test_tune_refuses(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse(TuneConfig, given)


@pytest.mark.parametrize(
    ("given", "epochs", "expected"),
    [
        pytest.param(None, 200, 40, id="a-fifth"),
        pytest.param(None, 5, 1, id="at-least-one"),
        pytest.param(7, 200, 7, id="as-given"),
        pytest.param(7, 5, 5, id="at-most-all"),
    ],
)
def test_grace(given: int | None, epochs: int, expected: int) -> None:
    assert TuneConfig(grace_epochs=given).grace(epochs) == expected


def test_tune_survives_dump_and_parse_in_its_order() -> None:
    space = {
        "optim.lr": {"loguniform": [1e-4, 1e-2], "when": {"model.heads": [2, 4]}},
        "model.heads": {"choice": [1, 2, 4]},
        "model.layers": {"int": [1, 6]},
    }
    config = parse(RunConfig, {**LEAST, "tune": {"space": space}})
    again = parse(RunConfig, config.dump())
    assert again == config
    assert list(again.tune.space) == ["optim.lr", "model.heads", "model.layers"]


def test_tune_is_no_part_of_what_a_run_computes() -> None:
    plain = parse(RunConfig, LEAST)
    searching = parse(RunConfig, override(LEAST, ["tune.num_trials=3"]))
    assert searching.identity() == plain.identity()
    assert [leaf.path for leaf in leaves(plain) if leaf.path.startswith("tune")] == ["tune"]
