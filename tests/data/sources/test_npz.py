"""Arrays from .npz files: plain ones only."""

import io

import numpy as np
import pytest

from dnformer import storage
from dnformer.data.sources.npz import ArrayHeader, load_npz, npz_headers, npz_pairs, npz_rows
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


@pytest.fixture(params=["savez", "savez_compressed"])
def file(tmp_path, request):
    """a `[2, 7]`, its like stored by column, x float16 `[5, 2]`, one number, objects."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 99, (2, 7))
    save = getattr(np, request.param)
    x = np.arange(10, dtype=np.float16).reshape(5, 2)
    save(tmp_path / "x.npz", a=a, by_column=np.asfortranarray(a), x=x, one=np.array([3]))
    return str(tmp_path / "x.npz")


def test_npz_headers_say_shape_and_type(file):
    headers = npz_headers(file)
    assert headers["a"] == ArrayHeader((2, 7), np.dtype(np.int64), False)
    assert headers["by_column"].by_column
    assert headers["x"] == ArrayHeader((5, 2), np.dtype(np.float16), False)
    assert list(headers) == ["a", "by_column", "x", "one"]


@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_npz_rows_are_the_array_in_pieces(file, rows):
    pieces = list(npz_rows(file, "x", rows))
    assert [len(piece) for piece in pieces[:-1]] == [rows] * (len(pieces) - 1)
    whole = np.concatenate(pieces)
    assert whole.dtype == np.float16
    assert whole.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [piece.tolist() for piece in npz_rows(file, "one", rows)] == [[3]]


@pytest.mark.parametrize("columns", [1, 3, 7, 20])
def test_npz_pairs_are_the_array_whichever_way_it_is_stored(file, columns):
    expected = load_npz(file)["a"]
    for key in ("a", "by_column"):
        pieces = list(npz_pairs(file, key, columns))
        assert max(piece.shape[1] for piece in pieces) <= columns
        assert np.array_equal(np.concatenate(pieces, axis=1), expected)


def test_npz_rows_stored_by_column_are_refused(file):
    with pytest.raises(DataError, match=r"x\.npz: by_column is stored by column; save it with np"):
        list(npz_rows(file, "by_column", 2))


def test_npz_streams_name_a_missing_file_or_array(file, tmp_path):
    for read in (npz_rows, npz_pairs):
        with pytest.raises(DataError, match=r"y\.npz: no such file"):
            list(read(str(tmp_path / "y.npz"), "a", 2))
        with pytest.raises(DataError, match=r"x\.npz: no npz file of plain arrays .*'b\.npy'"):
            list(read(file, "b", 2))


def test_npz_streams_refuse_objects(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([{}], dtype=object))
    for read in (lambda uri: npz_headers(uri), lambda uri: list(npz_rows(uri, "a", 2))):
        with pytest.raises(DataError, match=r"x\.npz: no npz file of plain arrays .*objects"):
            read(str(tmp_path / "x.npz"))


def test_npz_streams_refuse_a_flipped_byte_of_the_content(file, tmp_path):
    with open(file, "rb") as stream:
        whole = stream.read()
    expected = [piece.tolist() for piece in npz_pairs(file, "a", 3)]
    refused = 0
    for at in range(30, 200):  # the first array
        (tmp_path / "y.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        try:
            found = [piece.tolist() for piece in npz_pairs(str(tmp_path / "y.npz"), "a", 3)]
            assert found == expected  # of padding
        except DataError:
            refused += 1
    assert refused > 100
