"""The model's section: which model, its own options, and what it does not read."""

from typing import Any

import pytest

from dnformer.config import RunConfig
from dnformer.config.zoo import OPTIONS
from dnformer.errors import ConfigError
from dnformer.parsing import leaves, override, parse

LEAST = {"name": "run", "data": {"uri": "cache/cora"}}


def config(model: dict[str, Any], **sections: Any) -> RunConfig:
    return parse(RunConfig, {**LEAST, "model": model, **sections})


def full(name: str) -> dict[str, Any]:
    """Sections with which each model is a valid config."""
    return {"loader": {"kind": "full"}} if OPTIONS[name].whole_graph else {}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_stand_in_full_in_dump_and_identity(name: str) -> None:
    run = config({"name": name}, **full(name))
    assert parse(RunConfig, run.dump()) == run
    fields = {field.alias or key for key, field in OPTIONS[name].model_fields.items()}
    assert run.dump()["model"]["options"].keys() == fields
    assert {f"model.options.{field}" for field in fields} <= run.identity().keys()


def test_options_of_a_config_are_set_by_dotted_path() -> None:
    run = config({"name": "gcn", "options": {"norm": "layer"}})
    again = parse(RunConfig, override(run.dump(), ["model.options.residual=true"]))
    assert again.model.options == OPTIONS["gcn"](residual=True, norm="layer")
    assert run.differing(again) == [("model.options.residual", False, True)]


def test_runs_of_other_models_differ_by_name_and_not_by_what_only_one_has() -> None:
    assert config({"name": "gcn"}).differing(config({"name": "appnp"})) == [
        ("model.name", "gcn", "appnp")
    ]


def test_config_stored_before_there_were_other_models_is_the_same_run() -> None:
    run = config({"hidden": 32})
    stored = run.dump()
    for field in ("options", "input_dropout", "input_norm"):
        del stored["model"][field]
    assert run.differing(parse(RunConfig, stored)) == []


def test_defaults_are_those_of_the_model() -> None:
    run = config({"name": "appnp", "options": {"alpha": 0.3}})
    defaults = run.defaults()
    changed = {leaf.path for leaf in leaves(run) if leaf.value != defaults[leaf.path]}
    assert changed == {"model.name", "model.options.alpha"}


@pytest.mark.parametrize(
    ("model", "sections", "expected"),
    [
        pytest.param({"name": "gcnn"}, {}, "unknown model 'gcnn'; did you mean 'gcn'", id="name"),
        pytest.param({"name": "gcn", "options": {"residul": True}}, {},
                     "model.options: unknown key 'residul'; did you mean 'residual'", id="key"),
        pytest.param({"name": "gcn", "options": {"norm": "post"}}, {},
                     "model.options: norm: input should be 'none', 'layer' or 'batch'", id="value"),
        pytest.param({"options": {"norm": "layer"}}, {},
                     "model.options: model dnformer has none", id="dnformer"),
        pytest.param({"name": "gcn", "lambda": "head"}, {},
                     "lambda means nothing to model gcn", id="dnformers-own"),
        pytest.param({"name": "sgc", "hidden": 8}, {},
                     "hidden means nothing to model sgc", id="unread"),
        pytest.param({"name": "gat", "heads": 5}, {}, "hidden 64 is no multiple of heads 5",
                     id="heads"),
        pytest.param({"name": "gat"}, {"train": {"compile": True}},
                     "train.compile is there for dnformer, not for gat", id="compile"),
        pytest.param({"name": "gat"}, {"train": {"activation_checkpointing": True}},
                     "train.activation_checkpointing is there for dnformer", id="checkpointing"),
    ],
)  # fmt: skip
def test_model_refuses(model: dict[str, Any], sections: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(model, **sections)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_model_of_the_whole_graph_refuses_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPTIONS["gcn"], "whole_graph", True)
    for sections in ({}, {"loader": {"kind": "full"}, "eval": {"mode": "sampled"}}):
        with pytest.raises(ConfigError, match="model gcn is defined on the whole graph only"):
            config({"name": "gcn"}, **sections)
    config({"name": "gcn"}, loader={"kind": "full"})
