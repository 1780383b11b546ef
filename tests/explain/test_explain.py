"""Explanations of runs: what is said of a node is what the model says, in the words of its data."""

import io
import json
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from rich.console import Console

from dnformer.cli_explain import fitting
from dnformer.config import StorageConfig
from dnformer.data.manifest import read_manifest
from dnformer.explain import explain, words
from dnformer.explain.page import page
from dnformer.training.build import open_run_graph
from dnformer.training.trained import open_trained

from ..commands import Result, run_command
from ..report.conftest import CLASSES, EVIL

NODE = f"07 {EVIL}"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    return partial(run_command, capsys)


@pytest.fixture(scope="module")
def plain(trained) -> str:
    """A run on classes."""
    return trained("explained", model={"hidden": 8, "lambda": "fixed", "lambda_init": 1.0})


def outputs(run: str) -> torch.Tensor:
    """Of all nodes, by one pass of the whole graph."""
    found = open_trained(run, StorageConfig())
    graph = open_run_graph(found.config, found.manifest.fingerprint)
    colptr, row = np.array(graph.store.colptr), torch.from_numpy(np.array(graph.store.row)).long()
    dst = torch.arange(graph.num_nodes).repeat_interleave(torch.from_numpy(np.diff(colptr)))
    with torch.no_grad():
        x = torch.from_numpy(np.array(graph.store.x))
        return found.model()(x, torch.stack([row, dst]))


def test_explanation_says_what_the_model_says(plain):
    explained = explain(plain, [NODE], top=9)
    (found,) = explained.nodes
    expected = outputs(plain)
    assert found.node == 7
    probabilities = expected[7].softmax(0)
    assert list(found.values) == CLASSES
    assert list(found.values.values()) == pytest.approx(probabilities.tolist(), abs=1e-6)
    p = float(probabilities.max())
    assert found.score.value == pytest.approx(np.log(p / (1 - p)), rel=1e-4)
    for node, facts in found.facts.items():
        assert facts.id == f"{node:02d} {EVIL}"
        assert facts.label == CLASSES[node % 3]
        assert facts.prediction == CLASSES[int(expected[node].argmax())]
        assert facts.degree == 4
        assert facts.num_features == 3
        values = [abs(value) for _, value in facts.features]
        assert values == sorted(values, reverse=True)
    first, second = found.hops
    assert {each.node for each in first.nodes[0].shown} == {7, 10, 13, 16, 22}
    assert first.nodes[0].subtracted.total > 0
    # the rings of a node's neighbours, and all of them were followed
    assert {each.node for each in second.nodes} == {7, 10, 13, 16, 22}
    assert second.left_out == 0


@pytest.mark.parametrize("label", ["tags", "size"])
def test_labels_and_numbers_are_explained_too(trained, label):
    run = trained(label, data={"label": label})
    explained = explain(run, [NODE], hops=1)
    (found,) = explained.nodes
    expected, known = outputs(run)[7], open_trained(run, StorageConfig())
    own = found.facts[7]
    if label == "tags":
        assert own.prediction == [str(i) for i in range(2) if expected[i] > 0]
        assert found.score.value == pytest.approx(float(expected.max()), rel=1e-4)
        assert list(found.values.values()) == pytest.approx(expected.sigmoid().tolist(), rel=1e-4)
    else:
        value = float(expected[0]) * known.units["scale"][0] + known.units["mean"][0]
        assert own.prediction == pytest.approx(value, rel=1e-5)
        assert found.score.value == pytest.approx(value, rel=1e-5)
        assert own.label == pytest.approx(5000, rel=0.2)
    assert dict(words.summary(found, explained.kind))["predicted"] == words.shown(own.prediction)
    # unknown labels are said to be unknown
    y = open_run_graph(known.config, known.manifest.fingerprint).y
    for node, facts in found.facts.items():
        assert (facts.label is None) == (label == "tags" and bool((y[node] < 0).any()))


def test_model_with_one_softmax_has_weights_alone(trained):
    run = trained("single", model={"hidden": 8, "attention": "single"})
    explained = explain(run, [NODE], hops=1)
    (found,) = explained.nodes
    table = words.hop_table(found, explained, found.hops[0], "t")
    names = [column.name for column in table.columns]
    assert names[:4] == ["neighbour", "side", "w", "a1"]
    assert {"a2", "lambda", "of"}.isdisjoint(names)
    assert found.hops[0].nodes[0].subtracted.total == 0
    assert sum(each.w.mean for each in found.hops[0].nodes[0].shown) == pytest.approx(1, abs=1e-5)
    assert page(explained).numbers()["shown"]["drawing-1"]["hops"][0]["nodes"][0]["id"] == NODE


def test_command_prints_tables(run, plain):
    result = run("explain", plain, "--node", NODE, "--top", 1)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"node {NODE[:20]}")
    assert any(line.startswith("Hop 1, layer 2 of 2: what node 07 <script>") for line in lines)
    assert any("more are not followed" in line for line in lines)
    assert any(line.lstrip().startswith("1 more, w in all") for line in lines)
    (header,) = [line for line in lines if line.split()[:3] == ["neighbour", "side", "w"]]
    assert header.split()[3:8] == ["a1", "a2", "lambda", "w", "by"]


@pytest.mark.parametrize("width", [80, 100, 400])
def test_table_fits_the_terminal_and_breaks_no_number(plain, width):
    found = explain(plain, [NODE], hops=None, top=5, reached=StorageConfig())
    hop = found.nodes[0].hops[1]
    table = words.hop_table(found.nodes[0], found, hop, "t")
    console = Console(width=width, file=io.StringIO(), record=True)
    shown, *rest = fitting(table, console)
    console.print(shown)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    header = next(line for line in lines if "neighbour" in line)
    left_out = rest[0].plain.partition(":")[0].removeprefix("no room for ") if rest else ""
    for column in table.columns:
        assert (column.name in header) != (column.name in left_out.split(", "))
    words_shown = " ".join(lines).split()
    for neighbour in hop.nodes[0].shown:
        assert words.signed(neighbour.w.mean) in words_shown
        assert words.signed(neighbour.push) in words_shown
    assert bool(left_out) == (width < 400)


def test_command_gives_json(run, plain):
    result = run("explain", plain, "--node", NODE, "--node", f"08 {EVIL}", "--json")
    found = json.loads(result.stdout)
    assert [node["id"] for node in found["nodes"]] == [NODE, f"08 {EVIL}"]
    assert (found["layers"], found["top"], found["kind"]) == (2, 5, "class")
    node = found["nodes"][0]
    assert node["label"] == CLASSES[1]
    assert [hop["layer"] for hop in node["hops"]] == [2, 1]
    (own,) = node["hops"][0]["nodes"]
    shown = own["kept"]["shown"] + own["subtracted"]["shown"]
    assert sum(each["share"] for each in shown) == pytest.approx(1, abs=1e-4)
    assert sum(each["push"] for each in shown) == pytest.approx(own["push"], abs=1e-4)
    for each in shown:
        for head in range(found["heads"]):
            a1, a2, lam, w = (each[name]["heads"][head] for name in ("a1", "a2", "lambda", "w"))
            assert w == pytest.approx(a1 - lam * a2, abs=1e-6)
    assert sum(each["itself"] for each in shown) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--node", "07"], "has no node 07; it has ids like 00 <script>"),
        (["--node", NODE.replace("07", "0 7")], "nearest to"),
        (["--node", NODE, "--hops", "3"], "the model has 2 layers, so hops are 1 to 2"),
        ([], "Missing parameter: node"),
    ],
    ids=["unknown", "near", "hops", "no node"],
)
def test_command_refuses(run, plain, arguments, says):
    result = run("explain", plain, *arguments)
    assert result.returncode == 2
    assert says in result.stderr
    assert result.stdout == ""


def test_page_is_no_folder(run, plain, tmp_path):
    (tmp_path / "there").write_text("")
    result = run("explain", plain, "--node", NODE, "--html", tmp_path)
    assert result.returncode == 2
    assert f"--html {tmp_path} is a folder; name a file in it" in result.stderr


def test_command_refuses_other_models(run, trained):
    other = trained("gcn", model={"name": "gcn", "hidden": 8}, loader={"kind": "full"})
    result = run("explain", other, "--node", NODE)
    assert result.returncode == 2
    assert "is a run of gcn; only the attention of DNFormer can be read" in result.stderr


def test_page_is_one_file_without_markup_of_users(run, plain, tmp_path):
    out = tmp_path / "pages" / "e.html"
    result = run("explain", plain, "--node", NODE, "--html", out)
    assert result.returncode == 0
    assert f"wrote {out}" in result.stderr
    content = out.read_text()
    assert "<script>window" not in content
    assert "<img src=x" not in content
    assert "http://" not in content.replace("http://www.w3.org", "")
    assert "https://" not in content
    assert read_manifest(explain(plain, [NODE]).data).num_nodes == 90
