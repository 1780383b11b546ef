"""Predictions are what a full forward pass gives, whatever is asked for, with the original ids."""

import hashlib
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch

import dnformer
from dnformer.data.cache import write_cache
from dnformer.data.manifest import read_manifest
from dnformer.errors import CheckpointError, ConfigError, DataError
from dnformer.prediction.columns import Columns
from dnformer.prediction.launch import predict, start
from dnformer.prediction.options import PredictConfig
from dnformer.prediction.results import open_predictions
from dnformer.training.trained import open_trained

from .conftest import N, expected_logits, people


def ids_of(table: pa.Table) -> list:
    return table["id"].to_pylist()


def rows(table: pa.Table, name: str) -> torch.Tensor:
    return torch.tensor(table[name].to_pylist())


@pytest.mark.parametrize("part_rows", [1000, 40, 1], ids=str)
def test_predict_equals_a_full_forward_pass(run, folder, tmp_path, part_rows):
    options = PredictConfig(run=run, out=str(tmp_path / "out"), embeddings=True, layers=True)
    found = start(options, part_rows=part_rows)
    assert len(found.manifest.files) == -(-N // part_rows)
    table = found.table()
    assert table.column_names == [
        "id", "prediction", "class", "probabilities", "embedding", "layer_0", "layer_1", "layer_2",
    ]  # fmt: skip
    assert ids_of(table) == people(0).nodes.ids
    logits = expected_logits(run, folder / "people")
    shares = rows(table, "probabilities")
    torch.testing.assert_close(shares, logits.softmax(dim=1), rtol=0, atol=1e-5)
    assert rows(table, "prediction").tolist() == logits.argmax(dim=1).tolist()
    names = [["cats", "dogs"][number] for number in table["prediction"].to_pylist()]
    assert table["class"].to_pylist() == names
    assert table["embedding"] == table["layer_2"]
    model = open_trained(run, PredictConfig(run="a", out="b").storage).model()
    again = model.classify(rows(table, "embedding"))
    torch.testing.assert_close(again, logits, rtol=0, atol=1e-5)
    assert rows(table, "layer_0").shape == (N, 8)


def test_metrics_are_those_that_evaluate_gives(run, tmp_path):
    found = predict(run, str(tmp_path / "out"))
    evaluated = dnformer.evaluate(run)
    for split, metrics in (("val", evaluated.val), ("test", evaluated.test)):
        assert found.metrics[split]["accuracy"] == pytest.approx(metrics["accuracy"])
    # ten labels are not known, and these nodes are in no split
    assert sum(found.manifest.counts.values()) == N - 10
    compared = found.manifest.comparison
    assert (compared.split, compared.nodes) == ("test", found.manifest.counts["test"])
    assert compared.exact == found.metrics["test"]
    assert 0 <= compared.sampled["accuracy"] <= 1


def test_predict_numbers_in_their_own_units(make_run, folder, tmp_path):
    run = make_run("size", data={"label": "size"})
    found = predict(run, str(tmp_path / "out"))
    table = found.table()
    assert table.column_names == ["id", "length", "width"]
    logits, trained = expected_logits(run, folder / "people"), open_trained(run, _storage())
    mean, scale = (torch.tensor(trained.units[name]) for name in ("mean", "scale"))
    assert 4900 < float(mean[0]) < 5100
    for place, name in enumerate(("length", "width")):
        expected = logits[:, place] * scale[place] + mean[place]
        torch.testing.assert_close(rows(table, name), expected, rtol=1e-5, atol=0)
    # equal nodes, other sums
    test = dnformer.evaluate(run).test
    assert found.metrics["test"]["mae"] == pytest.approx(test["mae"], rel=1e-5)
    assert found.metrics["test"]["rmse"] == pytest.approx(test["rmse"], rel=1e-5)


def test_predict_a_column_for_each_of_several_labels(make_run, folder, tmp_path):
    run = make_run("tags", data={"label": "tags"})
    found = predict(run, str(tmp_path / "out"))
    table, shares = found.table(), expected_logits(run, folder / "people").sigmoid()
    assert table.column_names[1:3] == ["prediction_0", "prediction_0_probability"]
    for place in range(3):
        found_shares = rows(table, f"prediction_{place}_probability")
        torch.testing.assert_close(found_shares, shares[:, place], rtol=0, atol=1e-5)
        chosen = rows(table, f"prediction_{place}").bool()
        assert torch.equal(chosen, found_shares > 0.5)
    assert set(found.metrics["test"]) == {"f1", "f1_macro"}


def test_one_number_without_a_name_is_the_prediction():
    target = read_target(num_outputs=1, kind="regression")
    columns = Columns(target, {"mean": [10.0], "scale": [2.0]})
    values = columns.values(torch.tensor([[1.0], [-1.0]]))
    table = columns.table(pa.array([7, 8]), values, {})
    assert table.to_pydict() == {"id": [7, 8], "prediction": [12.0, 8.0]}


def read_target(**values):
    from dnformer.data.table import Target

    return Target(name="label", **values)


def _storage():
    return PredictConfig(run="a", out="b").storage


def test_predict_another_graph_of_the_same_schema(run, folder, tmp_path):
    found = predict(run, str(tmp_path / "out"), data=str(folder / "others"))
    table = found.table()
    assert ids_of(table) == people(1, nodes=40).nodes.ids
    logits = expected_logits(run, folder / "others")
    shares = rows(table, "probabilities")
    torch.testing.assert_close(shares, logits.softmax(dim=1), rtol=0, atol=1e-5)
    y = torch.from_numpy(people(1, nodes=40).nodes.targets[0].values)
    known = y >= 0
    share = float((logits.argmax(dim=1) == y)[known].double().mean())
    assert list(found.metrics) == ["known"]
    assert found.metrics["known"]["accuracy"] == pytest.approx(share)
    assert found.manifest.counts == {"known": 30}
    assert found.manifest.trained_on == read_manifest(str(folder / "people")).fingerprint
    assert found.manifest.identity.dataset == read_manifest(str(folder / "others")).fingerprint


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"features": 5}, "has 5 features, not 4;"), ({"attrs": 1}, "edge attributes a, not a, b;")],
    ids=str,
)
def test_other_schema_is_one_line(run, folder, tmp_path, changed, message):
    uri = str(tmp_path / "data")
    write_cache(people(1, **changed), uri, source="test")
    with pytest.raises(DataError, match=message):
        predict(run, str(tmp_path / "out"), data=uri)
    assert not (tmp_path / "out").exists()


ALL = people(0).nodes.ids
CHOSEN = [ALL[place] for place in (50, 3, 88)]


def as_parquet(path):
    pq.write_table(pa.table({"other": [1, 2, 3], "id": CHOSEN}), path)


def as_csv(path):
    path.write_text("id,other\n" + "".join(f"{each},1\n" for each in CHOSEN))


def as_text(path):
    path.write_text("\n".join([*CHOSEN, "", CHOSEN[0]]))


@pytest.mark.parametrize(
    ("name", "write"),
    [("nodes.parquet", as_parquet), ("nodes.csv", as_csv), ("nodes.txt", as_text)],
    ids=["parquet", "csv", "text"],
)
def test_predict_the_nodes_of_a_file(run, folder, tmp_path, name, write):
    write(tmp_path / name)
    found = predict(run, str(tmp_path / "out"), nodes=str(tmp_path / name), embeddings=True)
    table = found.table()
    assert ids_of(table) == [ALL[place] for place in (3, 50, 88)]
    expected = expected_logits(run, folder / "people").softmax(dim=1)[[3, 50, 88]]
    torch.testing.assert_close(rows(table, "probabilities"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["exact", "sampled"])
def test_predict_nodes_by_id_in_parts(run, folder, tmp_path, mode):
    options = PredictConfig(run=run, out=str(tmp_path / "out"), ids=CHOSEN, mode=mode)
    found = start(options, part_rows=2)
    assert [file.rows for file in found.manifest.files] == [2, 1]
    assert ids_of(found.table()) == [ALL[place] for place in (3, 50, 88)]
    expected = expected_logits(run, folder / "people").softmax(dim=1)[[3, 50, 88]]
    shares = rows(found.table(), "probabilities")
    if mode == "exact":
        torch.testing.assert_close(shares, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(3))
    assert (found.manifest.comparison is None) is (mode == "sampled")


def test_sampled_outputs_are_the_same_again(run, tmp_path):
    one, other = (predict(run, str(tmp_path / name), mode="sampled").table() for name in ("a", "b"))
    assert one.equals(other)
    assert not one.equals(predict(run, str(tmp_path / "c")).table())


def test_predict_a_split(run, tmp_path):
    found = predict(run, str(tmp_path / "out"), split="test")
    assert list(found.metrics) == ["test"]
    assert found.manifest.num_nodes == found.manifest.counts["test"]
    everything = predict(run, str(tmp_path / "all"))
    assert found.metrics["test"] == everything.metrics["test"]
    assert set(ids_of(found.table())) < set(ids_of(everything.table()))


def test_integer_and_plain_ids(make_run, folder, tmp_path):
    table = people(0)
    nodes = [table.nodes.__dict__ | {"ids": ids} for ids in (np.arange(N) * 3 - 7, None)]
    kinds = ["int", "index"]
    for kind, columns, chosen in zip(kinds, nodes, ([-7, 8], [0, 5]), strict=True):
        changed = type(table)(**table.__dict__ | {"nodes": type(table.nodes)(**columns)})
        uri = str(tmp_path / kind)
        write_cache(changed, uri, source="test")
        run = make_run(kind, data={"uri": uri})
        found = predict(run, str(tmp_path / f"out-{kind}"), ids=[chosen[1], str(chosen[0])])
        assert ids_of(found.table()) == chosen
        with pytest.raises(DataError, match=r"integers as ids, and no node five"):
            predict(run, str(tmp_path / "none"), ids=["five"])
        with pytest.raises(DataError, match=r"has no node 1000$"):
            predict(run, str(tmp_path / "none"), ids=[chosen[0], 1000])


def test_unknown_ids_are_named(run, tmp_path):
    with pytest.raises(DataError, match=r"/people has no node bob, n1000$"):
        predict(run, str(tmp_path / "out"), ids=["bob", CHOSEN[0], "n1000"])
    with pytest.raises(DataError, match=r"has no node 0, 1, 2, 3, 4 and 3 more$"):
        predict(run, str(tmp_path / "out"), ids=list(range(8)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"name\nn1\n", "no column 'id' with the ids; it has name"),
        ("a.txt", b"\n\n", "no id in it"),
        ("a.txt", b"\xff\xfe", "no UTF-8 text"),
        ("a.parquet", b"PAR1", "no readable Parquet file"),
    ],
)
def test_file_without_ids_is_one_line(run, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        predict(run, str(tmp_path / "out"), nodes=str(tmp_path / name))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ids": [1], "split": "test"}, r"one of ids, nodes and split"),
        ({"ids": []}, "ids is empty"),
        ({"mode": "sampled", "embeddings": True}, "embeddings needs mode exact"),
        ({"split": "tset"}, "split: input should be 'train', 'val' or 'test'"),
        ({"memory_limit": "100 MiB"}, "give at least .* MiB"),
        ({"workerz": 2}, "did you mean 'workers'"),
    ],
    ids=str,
)
def test_wrong_option_is_one_line(run, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        predict(run, str(tmp_path / "out"), **options)


def test_run_without_a_best_model_is_one_line(run, folder, tmp_path):
    with pytest.raises(CheckpointError, match="no run here"):
        predict(str(tmp_path), str(tmp_path / "out"))
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "run.json").write_bytes((folder / "runs" / "topic" / "run.json").read_bytes())
    with pytest.raises(CheckpointError, match="no checkpoint yet; train it first"):
        predict(str(begun), str(tmp_path / "out"))


def test_run_whose_validation_gave_nothing_is_one_line(run, folder, tmp_path):
    begun = tmp_path / "begun"
    shutil.copytree(run, begun)
    (state,) = begun.glob("checkpoints/*/state.json")
    document = json.loads(state.read_text())
    tensors = safetensors.torch.load_file(state.with_name(document["tensors"]["file"]))
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("best.")}
    content = safetensors.torch.save(kept)
    sha256 = hashlib.sha256(content).hexdigest()
    file = f"{sha256[:16]}.safetensors"
    document["tensors"] = {"file": file, "bytes": len(content), "sha256": sha256}
    state.with_name(file).write_bytes(content)
    state.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="so there is no best model; train it further"):
        predict(str(begun), str(tmp_path / "out"))


def test_model_of_the_zoo_is_computed_at_once(make_run, folder, tmp_path):
    run = make_run("gcn", model={"name": "gcn"}, loader={"kind": "full"})
    found = predict(run, str(tmp_path / "out"))
    trained = open_trained(run, _storage())
    x = torch.from_numpy(people(0).nodes.x)
    edge_index = torch.from_numpy(np.stack([people(0).src, people(0).dst]))
    with torch.no_grad():
        expected = trained.model()(x, edge_index).softmax(dim=1)
    torch.testing.assert_close(rows(found.table(), "probabilities"), expected, rtol=0, atol=1e-5)
    assert found.manifest.comparison is None
    with pytest.raises(ConfigError, match="model gcn gives no embeddings"):
        predict(run, str(tmp_path / "more"), embeddings=True)
    with pytest.raises(ConfigError, match="trained on the whole graph"):
        predict(run, str(tmp_path / "more"), mode="sampled")


def test_results_are_read_again_and_checked(run, tmp_path):
    made = predict(run, str(tmp_path / "out"))
    found = open_predictions(str(tmp_path / "out"))
    assert found == made
    assert found.table(["id"]).num_rows == N
    with pytest.raises(DataError, match=r"no column 'x'; there are id, prediction, class"):
        found.table(["x"])
    part = tmp_path / "out" / found.manifest.files[0].path
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(DataError, match="its content is not what the manifest says"):
        found.table()
    with pytest.raises(DataError, match="no predictions here"):
        open_predictions(str(tmp_path))
    assert os.listdir(tmp_path / "out" / "parts") == ["part-00000.parquet"]
