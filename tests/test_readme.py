"""What the README shows works as printed, in a folder with a user's own two tables."""

import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer

from dnformer.cli import app, main
from dnformer.config import RunConfig
from dnformer.parsing import parse, read_yaml
from dnformer.tuning.space import Space

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def block(language: str, holding: str) -> str:
    """The one code block of `language` that holds a text."""
    (found,) = [text for name, text in BLOCKS if name == language and holding in text]
    return str(found)


def commands() -> list[list[str]]:
    """The words of each command in a block, without those that stand for several."""
    lines = [
        line
        for name, text in BLOCKS
        if name in ("", "bash")
        for line in text.replace("\\\n", " ").splitlines()
    ]
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("dnformer ")]
    return [each[1:] for each in words if not {"|", ".."} & set(each)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """edges.csv and nodes.csv with string ids, and mine.yaml as the README prints it."""
    folder = tmp_path_factory.mktemp("readme")
    names = [f"node-{i}" for i in range(60)]
    edges = [f"{names[i]},{names[(i * 7 + step) % 60]}" for i in range(60) for step in (2, 4)]
    nodes = [f"{name},{'red' if i % 2 else 'blue'},{i % 2},{i % 5}" for i, name in enumerate(names)]
    (folder / "edges.csv").write_text("\n".join(["src,dst", *edges]))
    (folder / "nodes.csv").write_text("\n".join(["id,label,size,age", *nodes]))
    (folder / "mine.yaml").write_text(block("yaml", "name: mine"))
    return folder


def test_commands_of_the_first_section_run_in_order(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache-home"))
    lines = block("", "dnformer ingest --edges").strip().splitlines()
    assert [line.split()[1] for line in lines] == [
        "ingest", "describe", "train", "evaluate", "report", "predict", "explain",
    ]  # fmt: skip
    for line in lines:
        with pytest.raises(SystemExit) as exit_:
            main(line.split()[1:])
        assert exit_.value.code == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "test accuracy" in said
    assert re.search(r"node-7\b.*(red|blue)", said)
    assert "<html" in (folder / "report.html").read_text()
    ids = pq.read_table(folder / "predictions" / "parts", columns=["id"])["id"].to_pylist()
    assert sorted(ids) == sorted(f"node-{i}" for i in range(60))


def test_search_searches_what_it_says():
    config = parse(RunConfig, read_yaml(block("yaml", "name: search"), name="README"))
    space = Space(config)
    assert [dimension.path for dimension in space.dimensions] == [
        "model.heads", "model.layers", "optim.lr", "optim.weight_decay",
    ]  # fmt: skip
    assert config.tune.num_trials == 30


def test_python_snippet_runs_on_that_dataset(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache-home"))
    found: dict = {}
    exec(block("python", "from dnformer import"), found)
    assert found["out"].shape == (36, 2)
    assert found["target"].shape == (36,)


def test_python_snippets_run_one_after_the_other(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache-home"))
    snippets = [text for name, text in BLOCKS if name == "python"]
    assert len(snippets) >= 2
    for snippet in snippets:
        exec(snippet, {})
    assert capsys.readouterr().out.endswith(" True\n")


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_command_is_one_that_there_is(words):
    command = typer.main.get_command(app)
    rest = list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    # raises where an option or a value is none that it takes
    command.make_context("dnformer", rest)


def test_files_that_it_links_to_are_there():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_make_targets_exist():
    targets = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([\w-]+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", targets, flags=re.MULTILINE), target


def test_tree_lists_every_module():
    tree = block("", "dnformer/\n  config")
    for path in (ROOT / "dnformer").iterdir():
        if path.suffix == ".py" and path.stem != "__init__" and not path.stem.startswith("cli_"):
            assert re.search(rf"^  .*\b{path.stem}\b", tree, flags=re.MULTILINE), path.stem
        elif path.is_dir() and any(path.glob("*.py")):
            assert f"  {path.name}/" in tree, path.name
