"""The public names change on purpose only."""

import subprocess
import sys

import pytest

import dnformer
import dnformer.errors
import dnformer.nn


def test_public_names():
    assert dnformer.__all__ == [
        "DNFormer", "NeighborLoader", "NeighborSampler", "ingest", "open_graph",
    ]  # fmt: skip
    assert dnformer.nn.__all__ == ["Block", "DNFormer", "DiffAttention"]


@pytest.mark.parametrize("name", dnformer.__all__)
def test_public_name_can_be_imported(name):
    assert getattr(dnformer, name).__name__ == name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'DNFormers'"):
        dnformer.DNFormers  # noqa: B018


def test_every_error_has_one_base_and_an_exit_code():
    errors = [
        value
        for value in vars(dnformer.errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert {error.__name__ for error in errors} == {
        "DNFormerError", "ConfigError", "DataError", "CheckpointError", "BackendError",
        "TrainError", "Stopped", "InUseError", "LostError",
    }  # fmt: skip
    assert all(issubclass(error, dnformer.errors.DNFormerError) for error in errors)
    assert {error.exit_code for error in errors} == {1, 2, 143}


@pytest.mark.parametrize(
    "module", ["dnformer.cli", "dnformer.data.ingest.run", "dnformer.data.graph", "dnformer.config"]
)
def test_module_does_not_wait_for_torch(module):
    code = f"import sys, {module}; print('torch' in sys.modules, 'ray' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False False\n"
