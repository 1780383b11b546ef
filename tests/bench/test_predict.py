import pytest

from dnformer.bench.predict import Settings, run
from dnformer.errors import BackendError, ConfigError


def test_run_races_the_prediction_with_its_floor(tmp_path):
    said = []
    settings = Settings(edges=20_000, repeats=1, temp_dir=str(tmp_path))
    rows, targets = run(settings, say=said.append)
    ours, floor = rows
    assert (ours.impl, floor.impl) == ("predict", "floor")
    assert ours.to_floor == pytest.approx(ours.seconds / floor.seconds)
    assert floor.to_floor is None
    assert [target.name for target in targets] == [
        "seconds over the floor's", "CPU seconds over the floor's", "peak memory, GiB",
    ]  # fmt: skip
    assert 0 < targets[2].found < 2
    assert list(tmp_path.iterdir()) == []


def test_wrong_settings_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match="--edges 10: expected 10000 or more"):
        run(Settings(edges=10), say=print)
    settings = Settings(edges=20_000, memory_limit="much", repeats=1, temp_dir=str(tmp_path))
    with pytest.raises(BackendError, match=r"predict failed .*'much' is no size"):
        run(settings, say=lambda text: None)
