"""What the README shows works as printed, in a folder with a user's own two tables."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dnformer.cli import main
from dnformer.config import RunConfig
from dnformer.parsing import parse, read_yaml
from dnformer.tuning.space import Space

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def block(language: str, holding: str) -> str:
    """The one code block of `language` that holds a text."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    (found,) = [text for name, text in blocks if name == language and holding in text]
    return str(found)


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
    ids = pq.read_table(folder / "predictions", columns=["id"])["id"].to_pylist()
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
