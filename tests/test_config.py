from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dnformer.config import DataConfig, RunConfig, SplitConfig, load_config
from dnformer.errors import ConfigError
from dnformer.parsing import Section, leaves, override, parse, put, read_yaml

LEAST = {"name": "run", "data": {"uri": "cache/cora"}}


def config(*settings: str) -> RunConfig:
    return parse(RunConfig, override(LEAST, settings))


def message_of(*settings: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config(*settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def sections(section: type[BaseModel]) -> list[type[BaseModel]]:
    """Every section class but the base."""
    found = []
    for child in section.__subclasses__():
        if child.__module__.startswith("dnformer.config"):
            found += [child, *sections(child)]
    return found


def test_parse_least_config_has_the_documented_defaults() -> None:
    values = config().dump()
    assert values["loader"]["num_neighbors"] == [10]
    assert values["model"]["lambda"] == "edge"
    assert values["train"]["workers"] == 0
    assert values["train"]["micro_batches"] is None
    assert values["eval"] == {"mode": "exact", "every_epochs": 1}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        pytest.param("modle={}", "unknown key 'modle'; did you mean 'model'?", id="section"),
        pytest.param(
            "model.hiden=8", "unknown key 'model.hiden'; did you mean 'hidden'?", id="field"
        ),
        pytest.param(
            "model.lambd=edge", "unknown key 'model.lambd'; did you mean 'lambda'?", id="alias"
        ),
        pytest.param(
            "data.split={colum: true}",
            "unknown key 'data.split.colum'; did you mean 'column'?",
            id="optional-section",
        ),
        pytest.param(
            "eval.zzz=1",
            "unknown key 'eval.zzz'; allowed here: mode, every_epochs",
            id="nothing-near",
        ),
    ],
)
def test_parse_unknown_key_names_the_nearest(setting: str, expected: str) -> None:
    assert message_of(setting) == f"config: {expected}"


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("random", {"random": (0.6, 0.2, 0.2)}),
        ("planetoid", {"planetoid": 20}),
        ("column", {"column": True}),
    ],
)
def test_name_of_a_split_stands_for_its_usual_numbers(name, recipe):
    split = DataConfig.model_validate({"uri": "x", "split": name}).split
    assert split is not None
    assert split.recipe() == recipe


@pytest.mark.parametrize(
    ("setting", "path", "found"),
    [
        pytest.param("model.hidden=0", "model.hidden", "0", id="too-small"),
        pytest.param("model.dropout=1", "model.dropout", "1", id="dropout-of-everything"),
        pytest.param("train.epochs=many", "train.epochs", "'many'", id="word-for-number"),
        pytest.param("train.precision=half", "train.precision", "'half'", id="no-such-choice"),
        pytest.param("optim.lr=.inf", "optim.lr", "inf", id="infinite"),
        pytest.param("optim.lr=.nan", "optim.lr", "nan", id="nan"),
        pytest.param("loader=[1]", "loader", "[1]", id="list-for-section"),
        pytest.param("loader.num_neighbors=[]", "loader.num_neighbors", "[]", id="no-hop"),
        pytest.param("loader.num_neighbors=[5,-2]", "loader.num_neighbors.1", "-2", id="fan-out"),
        pytest.param("loader.num_neighbors=true", "loader.num_neighbors.0", "True", id="true-hop"),
        pytest.param(
            "data.split={planetoid: true}", "data.split.planetoid", "True", id="true-count"
        ),
        pytest.param("data.split={random: 0.6}", "data.split.random", "0.6", id="one-share"),
        pytest.param("name=5", "name", "5", id="number-for-name"),
    ],
)
def test_parse_wrong_value_is_named_with_path_and_value(
    setting: str, path: str, found: str
) -> None:
    message = message_of(setting)
    assert message.startswith(f"config: {path}: ")
    assert message.endswith(f"; found {found}")


def test_name_of_no_split_is_told_those_there_are() -> None:
    assert message_of("data.split=randm").startswith(
        "config: data.split: 'randm' is no split; there are column, random, per_class, time, "
    )


def test_parse_several_wrong_values_are_all_named_in_one_line() -> None:
    message = message_of("optim.lr=x", "train.epochs=0", "modl={}")
    for part in ("optim.lr: ", "train.epochs: ", "unknown key 'modl'"):
        assert part in message


def test_parse_missing_keys_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^f: data\.uri is required; name is required$"):
        parse(RunConfig, {"data": {}}, name="f")


def test_parse_key_that_is_no_string_is_named() -> None:
    with pytest.raises(ConfigError, match=r"keys should be strings; found 1$"):
        parse(RunConfig, {**LEAST, 1: 2})


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        pytest.param("{}", "takes exactly one of .*; found none", id="none"),
        pytest.param(
            "{column: true, random: [.6,.2,.2]}", "; found column, random$", id="two-recipes"
        ),
        pytest.param("{random: [.6,.2,.3]}", r"shares .* add up to 1\.1, not to 1", id="sum"),
        pytest.param("{random: [.6,.2]}", r"data\.split\.random\.2 is required", id="two-shares"),
        pytest.param("{column: false}", r"data\.split\.column: .*; found False", id="no-column"),
    ],
)
def test_split_takes_exactly_one_whole_recipe(recipe: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        config(f"data.split={recipe}")


@pytest.mark.parametrize(
    "recipe",
    [
        {"column": True},
        {"random": [0.5, 0.25, 0.25]},
        {"per_class": [0.6, 0.2, 0.2]},
        {"planetoid": 20},
        {"file": "split.npz"},
    ],
    ids=lambda recipe: next(iter(recipe)),
)
def test_split_recipe_survives_dump_and_parse(recipe: dict[str, Any]) -> None:
    split = parse(SplitConfig, recipe)
    assert split.model_dump(mode="json") == recipe
    assert parse(SplitConfig, split.model_dump(mode="json")) == split


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("7", [7, 7, 7], id="int"),
        pytest.param("[7]", [7, 7, 7], id="one"),
        pytest.param("[9, 4]", [9, 4, 4], id="last-repeats"),
        pytest.param("[9, 4, -1]", [9, 4, -1], id="each-hop"),
    ],
)
def test_fan_out_resolves_to_the_layers(value: str, expected: list[int]) -> None:
    run = config("model.layers=3", f"loader.num_neighbors={value}")
    assert run.loader.fan_out(run.model.layers) == expected


def test_num_neighbors_longer_than_layers_is_refused() -> None:
    message = message_of("model.layers=2", "loader.num_neighbors=[3,2,1]")
    assert message == "config: loader.num_neighbors has 3 hops for model.layers 2"


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(("train.workers=3", "train.micro_batches=2"), id="more-than-given"),
        pytest.param(("train.workers=2", "train.micro_batches=1"), id="more-than-one"),
    ],
)
def test_workers_beyond_micro_batches_are_refused(settings: tuple[str, ...]) -> None:
    assert "are more than the" in message_of(*settings)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(("train.workers=2",), id="default-micro-batches-follow-workers"),
        pytest.param(("train.workers=2", "train.micro_batches=4"), id="fewer-workers"),
        pytest.param(("train.workers=1", "loader.kind=full"), id="full-one-worker"),
        pytest.param(("train.workers=0", "loader.kind=full"), id="full-no-ray"),
    ],
)
def test_workers_within_micro_batches_are_taken(settings: tuple[str, ...]) -> None:
    config(*settings)


@pytest.mark.parametrize("setting", ["train.workers=2", "train.micro_batches=2"])
def test_kind_full_takes_one_micro_batch_only(setting: str) -> None:
    assert "loader.kind full trains in one worker" in message_of("loader.kind=full", setting)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(("sampling=labor", "replace=true"), "sampling labor goes", id="labor-replace"),
        pytest.param(("sampling=labor", "temporal=true"), "sampling labor goes", id="labor-time"),
        pytest.param(("kind=full", "sampling=weighted"), "kind full draws nothing", id="full"),
        pytest.param(("sampler=pyg-lib", "replace=true"), "use sampler dnformer", id="pyg-lib"),
        pytest.param(("sampling=best",), "'uniform', 'weighted' or 'labor'", id="unknown"),
    ],
)
def test_loader_draws_that_do_not_go_together_are_refused(
    settings: tuple[str, ...], expected: str
) -> None:
    assert expected in message_of(*(f"loader.{setting}" for setting in settings))


def test_loader_draws_go_together() -> None:
    draws = ("loader.sampling=weighted", "loader.replace=true", "loader.temporal=true")
    loader = config(*draws, "eval.mode=sampled").loader
    assert (loader.sampling, loader.replace, loader.temporal) == ("weighted", True, True)


def test_temporal_is_not_evaluated_with_what_comes_later() -> None:
    assert message_of("loader.temporal=true").endswith("set eval.mode: sampled")


def test_model_hidden_is_a_multiple_of_heads() -> None:
    assert message_of("model.hidden=65").endswith("model: hidden 65 is no multiple of heads 2")


def test_model_lambda_init_fits_its_bound() -> None:
    config("model.lambda_init=1.5")
    assert "out of a sigmoid's reach" in message_of(
        "model.lambda_init=1.5", "model.lambda_bound=sigmoid"
    )


@pytest.mark.parametrize(
    "name", ["..", "../run", "a/../b", "/run", "a//b", ".hidden", "a b", "s3://b", "run/", "run\n"]
)
def test_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no folder name") as caught:
        parse(RunConfig, {**LEAST, "name": name})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["run", "2026-01.b_c", "team/run-1"])
def test_name_of_a_folder_is_taken(name: str) -> None:
    assert parse(RunConfig, {**LEAST, "name": name}).name == name


def test_config_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().train.epochs = 3  # type: ignore[misc]


RUNTIME_PATHS = {
    "storage_path",
    "data.uri",
    "loader.threads",
    "loader.prefetch",
    "train.workers",
    "train.use_gpu",
    "train.gpu_share",
    "train.threads",
    "train.log_every",
    "train.compile",
    "train.activation_checkpointing",
    "train.max_failures",
    "train.collective_timeout_s",
    "train.watchdog_s",
    "checkpoint.every_epochs",
    "checkpoint.every_steps",
    "checkpoint.every_s",
    "checkpoint.keep",
    "checkpoint.keep_best",
    "checkpoint.background",
    "storage.options",
    "storage.retry_s",
    "tracking.tensorboard",
    "tracking.mlflow",
    "tracking.experiment",
    "tune",
    "cache.dir",
    "cache.max_bytes",
    "cache.hot_bytes",
    "cache.hot_gpu_bytes",
    "cache.reads",
    "cache.readers",
}


def test_identity_leaves_out_exactly_the_runtime_fields() -> None:
    found = list(leaves(config()))
    assert {leaf.path for leaf in found if leaf.runtime} == RUNTIME_PATHS
    assert set(config().identity()) == {leaf.path for leaf in found} - RUNTIME_PATHS
    assert config().identity()["optim.lr"] == 0.005


def test_identity_of_other_runtime_fields_is_the_same() -> None:
    other = config("data.uri=s3://b/x", "loader.threads=9", "checkpoint.keep=7", "cache.dir=/tmp")
    assert other.identity() == config().identity()


def test_identity_holds_a_split_recipe_as_one_value() -> None:
    identity = config("data.split={planetoid: 20}", "model.lambda=head").identity()
    assert identity["data.split"] == {"planetoid": 20}
    assert identity["model.lambda"] == "head"


def test_resolved_decides_what_was_left_open() -> None:
    run = config("seed=4").resolved(micro_batches=2, threads=3)
    assert (run.train.micro_batches, run.train.threads, run.data.seed) == (2, 3, 4)
    assert run.resolved(micro_batches=2, threads=3) == run


def test_resolved_keeps_a_seed_of_the_data() -> None:
    run = config("seed=4", "data.seed=0")
    assert run.data_seed == 0
    assert run.resolved(micro_batches=1, threads=1).data.seed == 0


def test_resolved_refuses_fewer_micro_batches_than_workers() -> None:
    with pytest.raises(ConfigError, match=r"train\.workers 3 are more than the 2"):
        config("train.workers=3").resolved(micro_batches=2, threads=1)


def test_dump_parses_to_the_same_config() -> None:
    run = config(
        "model.lambda=fixed", "data.split={random: [.6,.2,.2]}", "loader.num_neighbors=[5,-1]"
    )
    assert parse(RunConfig, run.dump()) == run


def test_every_field_of_every_section_has_a_description() -> None:
    found = sections(Section)
    assert len(found) >= 22
    lacking = [
        f"{section.__name__}.{name}"
        for section in found
        for name, field in section.model_fields.items()
        # a section describes itself in its docstring
        if not (field.description or (section is RunConfig and name in SECTION_NAMES))
    ]
    assert lacking == []
    assert all(section.__doc__ for section in found)


SECTION_NAMES = {
    "data", "loader", "model", "loss", "optim", "train", "eval", "checkpoint", "cache", "storage",
    "tracking",
}  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "path", "expected"),
    [
        pytest.param("optim.lr=0.01", ("optim", "lr"), 0.01, id="number"),
        pytest.param("loader.num_neighbors=[5, 3]", ("loader", "num_neighbors"), [5, 3], id="list"),
        pytest.param(
            "data.split={planetoid: 20}", ("data", "split"), {"planetoid": 20}, id="mapping"
        ),
        pytest.param("train.patience=null", ("train", "patience"), None, id="null"),
        pytest.param("name=a=b", ("name",), "a=b", id="value-with-equals"),
        pytest.param("name=", ("name",), None, id="empty"),
    ],
)
def test_override_reads_the_value_as_yaml(
    setting: str, path: tuple[str, ...], expected: object
) -> None:
    value: Any = override(LEAST, [setting])
    for key in path:
        value = value[key]
    assert value == expected


def test_override_leaves_its_input_alone_and_the_last_setting_wins() -> None:
    values = {"optim": {"lr": 1.0, "name": "adam"}}
    result = override(values, ["optim.lr=2", "optim.lr=3"])
    assert result == {"optim": {"lr": 3, "name": "adam"}}
    assert values == {"optim": {"lr": 1.0, "name": "adam"}}


def test_override_in_scientific_notation_is_a_number() -> None:
    assert config("optim.lr=1e-3").optim.lr == 0.001


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        pytest.param("optim.lr", "expected path=value", id="no-equals"),
        pytest.param("=3", "expected path=value", id="no-path"),
        pytest.param("optim.lr=[", r"'\[' is no valid YAML value", id="bad-yaml"),
    ],
)
def test_override_bad_syntax_is_named(setting: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--set .*{expected}"):
        override(LEAST, [setting])


def test_override_below_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^name\.x: 'name' is the value 'run', not a section$"):
        override(LEAST, ["name.x=1"])


def test_put_makes_missing_and_empty_sections() -> None:
    assert put({"train": None}, "train.epochs", 5) == {"train": {"epochs": 5}}
    assert put({}, "a.b.c", 1) == {"a": {"b": {"c": 1}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("a: 1\nb: 2\na: 3", r"^f: key 'a' stands twice \(line 3\)$", id="top"),
        pytest.param("a:\n  b: 1\n  b: 2", r"^f: key 'b' stands twice \(line 3\)$", id="nested"),
        pytest.param("a: [{b: 1, b: 2}]", "key 'b' stands twice", id="in-a-list"),
        pytest.param("a: 'b\n", r"^f line \d: no valid YAML: found unexpected end", id="quote"),
        pytest.param("a: \x00", "^f: no valid YAML", id="control-character"),
        pytest.param("- a", "expected 'key: value' lines, found list", id="list"),
        pytest.param("? [1]\n: 3", "unhashable", id="list-as-key"),
        pytest.param("a: !!python/object/apply:os.getcwd []", "no valid YAML", id="python-object"),
    ],
)
def test_read_yaml_refuses(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read_yaml(text, name="f")
    assert "\n" not in str(caught.value)


def test_read_yaml_empty_text_is_an_empty_mapping() -> None:
    assert read_yaml("# nothing\n", name="f") == {}


def test_read_yaml_merge_key_is_merged_and_overridden() -> None:
    text = "a: &base {x: 1, y: 2}\nb: {<<: *base, y: 3}"
    assert read_yaml(text, name="f")["b"] == {"x": 1, "y": 3}


def test_load_config_reads_a_file_with_settings_on_top(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("name: café\ndata: {uri: d}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.yaml: name: 'café' is no folder name"):
        load_config(path)
    assert load_config(path, ["name=run", "seed=3"]).seed == 3


def test_load_config_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")


def test_load_config_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)


def test_load_config_other_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes("name: café".encode("latin-1"))
    with pytest.raises(ConfigError, match="cannot be read: not UTF-8 text"):
        load_config(path)


@pytest.mark.parametrize(
    "options",
    [
        "{s3: {key: AKIA}}",
        "{s3: {client_kwargs: {aws_secret_access_key: x}}}",
        "{gs: {token: /path/to/key.json}}",
        "{s3: {endpoint_url: 'http://me:word@host:9000'}}",
    ],
)
def test_storage_options_refuse_credentials(options: str) -> None:
    assert "storage.options" in message_of(f"storage.options={options}")
    assert "AKIA" not in message_of(f"storage.options={options}")


def test_storage_options_take_what_is_no_credential() -> None:
    found = config("storage.options={s3: {endpoint_url: 'http://h:9'}, gs: {token: anon}}")
    assert found.storage.options["s3"] == {"endpoint_url": "http://h:9"}


@pytest.mark.parametrize("workers", ["[0, 2]", "[3, 2]", "-1", "[1, 2, 3]", "[1]"])
def test_train_workers_that_are_no_range_are_refused(workers: str) -> None:
    assert "train.workers" in message_of(f"train.workers={workers}", "train.micro_batches=8")


def test_train_workers_in_a_range() -> None:
    train = config("train.workers=[1, 3]").train
    assert (train.min_workers, train.max_workers) == (1, 3)
    assert parse(RunConfig, config("train.workers=[1, 3]").dump()).train == train
