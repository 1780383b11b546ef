"""The entry script of predictions."""

from pathlib import Path

from dnformer.cli_common import folder_job_arguments

SCRIPT = Path(__file__).parents[2] / "jobs" / "predict.py"


def test_script_has_at_most_40_lines():
    assert len(SCRIPT.read_text().splitlines()) <= 40


def test_script_takes_a_run_or_a_config_and_settings():
    given = ["runs/a", "out=s3://b/said", "--layers", "workers=2"]
    assert [*folder_job_arguments("predict", given)] == [
        "predict", "runs/a", "--set", "out=s3://b/said", "--layers", "--set", "workers=2", "--json",
    ]  # fmt: skip
    assert [*folder_job_arguments("predict", ["predict.yaml", "--out=x.yaml"])] == [
        "predict", "--config", "predict.yaml", "--out=x.yaml", "--json",
    ]  # fmt: skip
