"""Features and labels as `NodeColumns` wants them: finite float32, classes 0..K-1, refused by row.

Every source hands its columns through here, so the same bad value gets the same message.
`where(row)` names a row as a person finds it, for example "nodes.csv row 17".
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dnformer.data.table import Features, Int64Array
from dnformer.errors import DataError

Layout: TypeAlias = Literal["auto", "dense", "sparse"]
Where: TypeAlias = Callable[[int], str]

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


def lay_out(x: Any, layout: Layout) -> Features:
    """Checked features in the layout asked for; None where they have no column.

    "auto" looks at the content only: sparse from 64 features on when at most 25 % are nonzero.
    `x` is what `finite` or `finite_csr` gave; it is returned itself where the layout is the same.
    """
    if x.shape[1] == 0:
        return None
    sparse = layout == "sparse"
    if layout == "auto" and x.shape[1] >= _SPARSE_MIN_FEATURES:
        stored = x.nnz if sp.issparse(x) else np.count_nonzero(x)
        sparse = int(stored) * 100 <= _SPARSE_PERCENT * x.shape[0] * x.shape[1]
    if sp.issparse(x):
        return x if sparse else x.toarray()
    return sp.csr_matrix(x) if sparse else x


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


def count_classes(y: Int64Array, *, num_classes: int | None, where: Where) -> int:
    """K of the labels `y` `[N]`, where -1 is no label: `num_classes`, or the largest label + 1.

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
    labelled = int(np.count_nonzero(y >= 0))
    if y[top] >= labelled > 0:
        found = f"{where(top)}: label {y[top]} makes {int(y[top]) + 1} classes"
        raise DataError(
            f"{found}, but only {labelled} nodes have a label; number the classes from 0, "
            "or give num_classes"
        )
    return int(y[top]) + 1


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
