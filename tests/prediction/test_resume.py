"""A prediction that was killed goes on by the same call; nothing else may write into its folder."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dnformer import storage
from dnformer.errors import DataError
from dnformer.prediction.launch import predict, start
from dnformer.prediction.options import PredictConfig
from dnformer.prediction.results import open_predictions

PROGRAM = """
import sys
from dnformer.prediction.launch import start
from dnformer.prediction.options import PredictConfig
start(PredictConfig(run=sys.argv[1], out=sys.argv[2], embeddings=True), part_rows=1)
"""


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "parts").iterdir()}


def test_killed_at_any_part_it_goes_on_to_the_same(run, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    options = PredictConfig(run=run, out=str(whole), embeddings=True)
    start(options, part_rows=1)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, run, str(out)])
    least = random.Random(0).randrange(3, 40)
    notes, end = out / ".notes", time.monotonic() + 120
    while len(list(notes.glob("*.json"))) < least and time.monotonic() < end:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = {path.stem: path for path in notes.glob("*.json")}
    assert least <= len(done) < 90
    assert not (out / "manifest.json").exists()
    with pytest.raises(DataError, match="goes on where it was stopped"):
        open_predictions(str(out))
    written = {stem: (out / "parts" / f"part-{stem}.parquet").stat().st_mtime_ns for stem in done}
    found = start(options.model_copy(update={"out": str(out)}), part_rows=1)
    for stem, when in written.items():
        assert (out / "parts" / f"part-{stem}.parquet").stat().st_mtime_ns == when
    assert contents(out) == contents(whole)
    assert found.table().equals(open_predictions(str(whole)).table())
    assert found.metrics == open_predictions(str(whole)).metrics
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "parts"]


def unfinished(run: str, out: Path) -> PredictConfig:
    """A prediction in parts of 30 rows, all of which are there, but no manifest yet."""
    options = PredictConfig(run=run, out=str(out))
    kept = {}

    def look(state: object) -> None:
        # before the notes go
        kept.update({path: path.read_bytes() for path in out.glob(".*") if path.is_file()})
        kept.update({path: path.read_bytes() for path in out.glob(".notes/*")})

    start(options, say=look, part_rows=30)
    (out / "manifest.json").unlink()
    (out / ".notes").mkdir()
    for path, content in kept.items():
        path.write_bytes(content)
    return options


@pytest.mark.parametrize("damage", ["shorter", "other", "gone", "no note", "damaged note"])
def test_part_that_is_not_whole_is_made_again(run, tmp_path, damage):
    options = unfinished(run, tmp_path)
    before = contents(tmp_path)
    assert len(list((tmp_path / ".notes").iterdir())) == 3
    part, note = tmp_path / "parts" / "part-00001.parquet", tmp_path / ".notes" / "00001.json"
    if damage == "shorter":
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "other":
        part.write_bytes(b"x" * part.stat().st_size)
    elif damage == "gone":
        part.unlink()
    elif damage == "no note":
        note.unlink()
    else:
        note.write_bytes(b"{")
    untouched = (tmp_path / "parts" / "part-00000.parquet").stat().st_mtime_ns
    start(options, part_rows=30)
    assert contents(tmp_path) == before
    assert (tmp_path / "parts" / "part-00000.parquet").stat().st_mtime_ns == untouched


def test_finished_prediction_is_given_again(run, tmp_path):
    made, said = predict(run, str(tmp_path / "out")), []
    part = tmp_path / "out" / made.manifest.files[0].path
    before = part.stat().st_mtime_ns
    options = PredictConfig(run=run, out=str(tmp_path / "out"))
    assert start(options, say=said.append) == made
    assert [state.text for state in said] == [
        f"{tmp_path}/out is there already; --overwrite makes it anew"
    ]
    assert part.stat().st_mtime_ns == before
    start(options.model_copy(update={"overwrite": True}))
    assert part.stat().st_mtime_ns > before


def test_other_prediction_into_the_folder_is_refused(run, make_run, tmp_path):
    out = str(tmp_path / "out")
    predict(run, out)
    other = make_run("other", model={"hidden": 4})
    message = (
        r"holds other predictions \(columns is embeddings here, none there\); choose another "
        "--out, or replace them with --overwrite"
    )
    with pytest.raises(DataError, match=message):
        predict(run, out, embeddings=True)
    with pytest.raises(DataError, match=r"\(run is .*/other here, .*; model is [0-9a-f]{12} here"):
        predict(other, out)
    with pytest.raises(DataError, match=r"\(selection is split test here, all nodes there\)"):
        predict(run, out, split="test")
    found = predict(other, out, overwrite=True)
    assert found.manifest.name == "other"


def test_other_prediction_into_an_unfinished_folder_is_refused(run, tmp_path):
    options = unfinished(run, tmp_path)
    with pytest.raises(DataError, match="holds other predictions"):
        start(options.model_copy(update={"layers": True}))
    (tmp_path / ".predicting.json").write_text("{}")
    with pytest.raises(DataError, match="is damaged; start over with --overwrite"):
        start(options)
    assert start(options.model_copy(update={"overwrite": True})).manifest.num_nodes == 90


def test_foreign_folder_is_left_alone(run, folder, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(DataError, match=r"holds no predictions \(found mine.txt\)"):
            predict(run, str(tmp_path), overwrite=overwrite)
    with pytest.raises(DataError, match="is no manifest of predictions; choose another folder"):
        predict(run, str(folder / "people"), overwrite=True)
    assert (folder / "people" / "manifest.json").exists()


@pytest.mark.parametrize("store", ["memory", "s3"])
def test_predictions_go_to_any_store(run, folder, tmp_path, store, request):
    base = "memory://predictions" if store == "memory" else request.getfixturevalue("s3")
    out = storage.join(base, "out")
    found = predict(run, out, temp_dir=str(tmp_path / "temp"))
    assert found.table().equals(predict(run, str(tmp_path / "out")).table())
    assert storage.list_names(out) == ["manifest.json", "parts"]
    assert predict(run, out) == found
    assert list((tmp_path / "temp").iterdir()) == []
    storage.remove(out)
