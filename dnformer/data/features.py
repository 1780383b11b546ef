"""Features, labels and splits as `NodeColumns` wants them; what it does not want is refused.

Every source hands its columns through here, so the same bad value gets the same message.
`where(row)` names a row as a person finds it, for example "nodes.csv row 17".
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from dnformer.data.table import SPLITS, Features, Int64Array
from dnformer.errors import DataError

Layout: TypeAlias = Literal["auto", "dense", "sparse"]
Where: TypeAlias = Callable[[int], str]

TEXT = pa.large_string()  # a string array of Arrow's ends at 2 GB

_SPLIT_CODES = {**SPLITS, "valid": SPLITS["val"], "validation": SPLITS["val"], "": 0}

# an entry takes 8 bytes in CSR and 4 in a dense matrix: at 25 % CSR takes half
_SPARSE_PERCENT = 25
_SPARSE_MIN_FEATURES = 64


def finite(
    x: npt.NDArray[Any], *, where: Where, column: Callable[[int], str] = "feature {}".format
) -> npt.NDArray[np.float32]:
    """`x` `[N, F]` of any real type as a new float32 array of its own, with -0.0 as 0.0.

    Raises:
        DataError: it is no matrix of real numbers, or a value is NaN, infinite or past float32.
    """
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        found = f"{x.dtype} of shape {list(x.shape)}"
        raise DataError(f"features are {found}; give real numbers of shape [num_nodes, F]")
    out, bad = _float32(x)
    if bad is not None:
        row, col = divmod(bad, x.shape[1])
        raise _not_finite(where(row), column(col), x[row, col])
    return out


def finite_csr(x: Any, *, where: Where) -> Any:
    """The scipy CSR matrix `x` as a new float32 one: sorted indices, no stored zero, no -0.0.

    Raises:
        DataError: an entry is NaN, infinite, past float32, or stored twice.
    """
    if x.dtype.kind not in "fiub":
        raise DataError(f"features are {x.dtype}; give real numbers")
    data, bad = _float32(x.data)
    if bad is not None:
        row = int(np.searchsorted(x.indptr, bad, side="right")) - 1
        raise _not_finite(where(row), f"feature {x.indices[bad]}", x.data[bad])
    out = sp.csr_matrix((data, x.indices, x.indptr), shape=x.shape, copy=True)
    out.sort_indices()
    if not out.has_canonical_format:
        rows = np.repeat(np.arange(out.shape[0]), np.diff(out.indptr))
        twice = (rows[1:] == rows[:-1]) & (out.indices[1:] == out.indices[:-1])
        entry = int(np.argmax(twice))
        found = f"{where(int(rows[entry]))}: feature {out.indices[entry]} is stored twice"
        raise DataError(f"{found}; store each entry once (scipy: x.sum_duplicates())")
    out.eliminate_zeros()
    return out


def arrow_block(
    column: Any,
    name: str,
    *,
    where: Where,
    width: int | None,
    mend: str = "choose the feature columns with features",
) -> npt.NDArray[np.float32]:
    """An Arrow column of numbers as `[N, 1]`, or one of lists of numbers as `[N, width]`.

    `width` None takes the length of the first list. N is at least 1. `mend` is what helps where the
    column holds no numbers.

    Raises:
        DataError: a value is missing, no number or not finite, or a list has another length.
    """
    is_list, kind = _is_list(column.type), column.type
    if is_list:
        kind = kind.value_type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        found = f"{where(0)} and on: column {name!r} is {column.type}, not numbers"
        raise DataError(f"{found}; {mend}")
    if column.null_count:
        raise missing(where(first_true(pc.is_null(column))), name)
    if not is_list:
        width = width or 1
    else:
        lengths = pc.list_value_length(column).to_numpy()
        width = int(lengths[0]) if width is None else width
        ragged = np.flatnonzero(lengths != width)
        if ragged.size or not width:
            row = int(ragged[0]) if ragged.size else 0
            found = f"{where(row)}: column {name!r} has {lengths[row]} values"
            raise DataError(
                f"{found}, expected {width or 'at least 1'}; features are one column of equally "
                "long lists, or columns of numbers: choose them with features"
            )
        column = pc.list_flatten(column)
        if column.null_count:
            raise missing(where(first_true(pc.is_null(column)) // width), name)
    if not is_list and width != 1:
        raise DataError(f"{where(0)} and on: column {name!r} is {kind}, expected lists of {width}")
    return finite(
        column.to_numpy(zero_copy_only=False).reshape(-1, width),
        where=where,
        column=lambda at: f"{name}[{at}]" if is_list else name,
    )


def _is_list(kind: Any) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def lay_out(x: Any, layout: Layout) -> Features:
    """Checked features in the layout asked for; None where they have no column.

    "auto" looks at the content only: sparse from 64 features on when at most 25 % are nonzero.
    `x` is what `finite` or `finite_csr` gave; it is returned itself where the layout is the same.
    """
    if x.shape[1] == 0:
        return None
    stored = 0
    if layout == "auto" and x.shape[1] >= _SPARSE_MIN_FEATURES:
        stored = int(x.nnz if sp.issparse(x) else np.count_nonzero(x))
    sparse = is_sparse(layout, stored, *x.shape)
    if sp.issparse(x):
        return x if sparse else x.toarray()
    return sp.csr_matrix(x) if sparse else x


def is_sparse(layout: Layout, stored: int, num_nodes: int, width: int) -> bool:
    """Whether features `[N, F]` of which `stored` are not 0 are kept sparse."""
    if layout != "auto":
        return layout == "sparse" and width > 0
    wide = width >= _SPARSE_MIN_FEATURES
    return wide and stored * 100 <= _SPARSE_PERCENT * num_nodes * width


def csr_from_parts(
    data: npt.NDArray[Any],
    indices: npt.NDArray[Any],
    indptr: npt.NDArray[Any],
    shape: tuple[int, ...],
    *,
    name: str,
) -> Any:
    """A scipy CSR matrix from parts that nobody has checked yet.

    Raises:
        DataError: the parts do not make one matrix; the message starts with `name`.
    """
    for part, array, kinds in (
        ("data", data, "fiub"),
        ("indices", indices, "iu"),
        ("indptr", indptr, "iu"),
    ):
        if array.ndim != 1 or array.dtype.kind not in kinds:
            found = f"{part} is {array.dtype} of shape {list(array.shape)}"
            raise DataError(f"{name}: no CSR matrix: {found}; it must be a flat list of numbers")
    try:
        matrix = sp.csr_matrix((data, indices, indptr), shape=shape)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        raise DataError(f"{name}: no CSR matrix of shape {list(shape)}: {error}") from None
    return matrix


def count_classes(
    y: Int64Array, *, num_classes: int | None, where: Where, labelled: int | None = None
) -> int:
    """K of the labels `y` `[N]`, where -1 is no label: `num_classes`, or the largest label + 1.

    `labelled` is the number of nodes with a label, where `y` has only some of them.

    Raises:
        DataError: a label is below -1 or not below `num_classes`; or K is not given and would
            be more than the labelled nodes, which a mistaken column or a wild value causes.
    """
    low = np.flatnonzero(y < -1)
    if low.size:
        found = f"{where(int(low[0]))}: label {y[low[0]]}"
        raise DataError(f"{found} is negative; classes start at 0, -1 or no value is no label")
    top = int(np.argmax(y))
    if num_classes is not None:
        high = np.flatnonzero(y >= num_classes)
        if high.size:
            found = f"{where(int(high[0]))}: label {y[high[0]]} is out of range"
            raise DataError(
                f"{found}; with num_classes {num_classes} the largest is {num_classes - 1}"
            )
        return num_classes
    labelled = int(np.count_nonzero(y >= 0)) if labelled is None else labelled
    if y[top] >= labelled > 0:
        found = f"{where(top)}: label {y[top]} makes {int(y[top]) + 1} classes"
        raise DataError(
            f"{found}, but only {labelled} nodes have a label; number the classes from 0, "
            "or give num_classes"
        )
    return int(y[top]) + 1


def first_true(mask: Any) -> int:
    """Position of the first true value of an Arrow array, -1 where there is none."""
    return int(pc.index(mask, pa.scalar(True)).as_py())


def arrow_kind(of: Any, *, numbers: bool) -> Any:
    """What an Arrow type is read as: int64, TEXT, with `numbers` also float64; else None."""
    if pa.types.is_integer(of) or (numbers and pa.types.is_boolean(of)):
        return pa.int64()
    if pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of):
        return TEXT
    return pa.float64() if numbers and pa.types.is_floating(of) else None


def plain_integers(text: Any) -> Any:
    """Arrow's `text` as int64 where each, or null, is the plain form of one; None otherwise."""
    try:
        integers = pc.cast(text, pa.int64())
    except pa.ArrowInvalid:
        return None
    same = pc.all(pc.equal(pc.cast(integers, TEXT), text), min_count=0)
    return integers if same.as_py() else None


def arrow_labels(
    column: Any,
    name: str,
    *,
    is_csv: bool,
    num_classes: int | None,
    where: Where,
    labelled: int | None = None,
) -> tuple[Int64Array, int, list[str] | None]:
    """Labels -1..K-1 of an Arrow column of int64, float64 or TEXT, K, and the names of classes.

    Null, -1 and "" are no label. Text is names, ranked by their UTF-8 bytes; in CSV it is
    numbers where all are whole, with or without ".0". `labelled` as in `count_classes`.

    Raises:
        DataError: a number is not whole or out of range, or `num_classes` is another number.
    """
    if column.type == TEXT:
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, TEXT), column)
        whole = plain_integers(pc.replace_substring_regex(column, r"\.0*$", "")) if is_csv else None
        if whole is None:
            return _class_names(column, name, is_csv=is_csv, num_classes=num_classes, where=where)
        column = whole
    elif column.type == pa.float64():
        column = whole_numbers(column, name, where)
    y: Int64Array = pc.fill_null(column, -1).to_numpy()
    given = {"num_classes": num_classes, "labelled": labelled}
    return y, count_classes(y, where=where, **given), None


def whole_numbers(column: Any, name: str, where: Where) -> Any:
    """A float64 column of classes as int64.

    Raises:
        DataError: a value is not whole.
    """
    odd = pc.or_(pc.not_equal(column, pc.floor(column)), pc.greater(pc.abs(column), 2.0**53))
    row = first_true(odd)
    if row >= 0:
        found = f"{where(row)}: {name} {column[row]}"
        raise DataError(f"{found} is no class; classes are whole numbers from 0, or names")
    return pc.cast(column, pa.int64())


def _class_names(
    column: Any, name: str, *, is_csv: bool, num_classes: int | None, where: Where
) -> tuple[Int64Array, int, list[str]]:
    if is_csv:
        with suppress(pa.ArrowInvalid):  # raised by names, which is what we expect
            whole_numbers(pc.cast(column, pa.float64()), name, where)
    names = pc.unique(column).drop_null()
    names = names.take(pc.sort_indices(names))
    if num_classes not in (None, len(names)):
        found = f"{where(0)} and on: {name} has {len(names)} class names"
        raise DataError(f"{found}, but num_classes is {num_classes}; leave num_classes out")
    y: Int64Array = pc.fill_null(pc.index_in(column, value_set=names), -1).to_numpy()
    return y.astype(np.int64), len(names), names.to_pylist()


def arrow_split(column: Any, name: str, *, where: Where) -> npt.NDArray[np.int8]:
    """Split codes of an Arrow column of TEXT; null and "" are no split.

    Raises:
        DataError: a value is none of train, val (valid, validation), test.
    """
    if column.type != TEXT and column.null_count < len(column):
        found = f"{where(0)} and on: column {name!r} is {column.type}"
        raise DataError(f"{found}; it must hold train, val, test or nothing")
    column = pc.fill_null(pc.cast(column, TEXT), "")
    at = pc.index_in(column, value_set=pa.array(list(_SPLIT_CODES), TEXT))
    row = first_true(pc.is_null(at))
    if row >= 0:
        found = f"{where(row)}: {name} {column[row].as_py()!r}"
        raise DataError(f"{found} is no split; allowed are train, val, test or nothing")
    by_position = np.array(list(_SPLIT_CODES.values()), dtype=np.int8)
    codes: npt.NDArray[np.int8] = by_position[at.to_numpy()]
    return codes


def refuse_empty_split(codes: set[int], name: str, where: Where) -> None:
    """Refuses a split column, of whose values `codes` are all, without one of the three.

    Raises:
        DataError: one has no row.
    """
    for part, code in SPLITS.items():
        if code not in codes:
            found = f"{where(0)} and on: no row has {part} in column {name!r}"
            raise DataError(f"{found}; fill it, or rename the column to leave it out")


def missing(where: str, name: str) -> DataError:
    """A row has no value where it must have one."""
    return DataError(f"{where}: {name} has no value; fill it, or drop the row")


def _float32(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], int | None]:
    """`values` as float32, and the flat position of the first that float32 cannot hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        out = values.astype(np.float32, order="C")
        # min and max carry NaN and infinity through without a mask of the whole matrix
        if out.size and not (np.isfinite(out.min()) and np.isfinite(out.max())):
            return out, int(np.argmin(np.isfinite(out)))
    out += np.float32(0.0)
    return out, None


def _not_finite(where: str, column: str, value: Any) -> DataError:
    limit = "a finite number" if not np.isfinite(value) else "at most 3.4e38, as float32 holds it"
    return DataError(f"{where}: {column} is {value}; it must be {limit}: mend it or drop the row")
