"""Arrays from .npz files: plain ones only."""

import io

import numpy as np
import pytest

from dnformer import storage
from dnformer.data.npz import load_npz
from dnformer.errors import DataError


def test_load_npz_gives_the_arrays_from_any_storage(tmp_path):
    content = io.BytesIO()
    np.savez_compressed(content, a=np.arange(3), b=np.eye(2, dtype=np.float32))
    uri = f"memory://{tmp_path.name}/x.npz"
    storage.write_bytes(uri, content.getvalue())
    arrays = load_npz(uri)
    assert arrays.keys() == {"a", "b"}
    assert arrays["a"].tolist() == [0, 1, 2]
    assert arrays["b"].dtype == np.float32


def test_load_npz_refuses_a_flipped_byte_anywhere(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(3))
    whole = (tmp_path / "x.npz").read_bytes()
    refused = 0
    for at in range(len(whole)):
        (tmp_path / "x.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        try:
            # some bytes of a zip file mean nothing to its reader
            assert load_npz(str(tmp_path / "x.npz"))["a"].tolist() == [0, 1, 2]
        except DataError:
            refused += 1
    assert refused > len(whole) // 2


def test_load_npz_names_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"x\.npz: no such file"):
        load_npz(str(tmp_path / "x.npz"))
