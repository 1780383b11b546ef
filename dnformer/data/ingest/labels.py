"""What nodes have to learn, read a batch at a time: classes, several labels, numbers."""

from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dnformer.data.features import (
    TEXT,
    arrow_kind,
    arrow_labels,
    count_classes,
    whole_numbers,
)
from dnformer.data.ingest.scan import cast
from dnformer.data.ingest.table_files import Batch, TableFiles
from dnformer.data.ingest.tables import Kind, LabelColumns
from dnformer.data.table import Target
from dnformer.errors import ConfigError, DataError

Values = npt.NDArray[Any]

# names of classes are held in memory; more of them are a mistaken column
_MAX_NAMES = 1 << 20


class LabelReader(ABC):
    """Reads one target, batch by batch; what `read` gives is staged, and `resolve`d at last."""

    def __init__(self, label: LabelColumns, kind: Kind) -> None:
        self.label, self.kind = label, kind

    @abstractmethod
    def read(self, batch: Batch) -> Values:
        """A batch's values, one or one row of them a node."""

    @abstractmethod
    def merge(self, later: "LabelReader", where: str) -> None:
        """Takes over what another reader learnt of rows that come later, the first at `where`.

        Raises:
            DataError: both do not fit together.
        """

    @abstractmethod
    def target(self) -> Target | None:
        """What there is to learn, after the last batch; None where no node has a label."""

    @abstractmethod
    def resolve(self, values: Values) -> Values:
        """What `read` gave as `TargetColumn` has it."""


def label_reader(label: LabelColumns, table: TableFiles, num_classes: int | None) -> LabelReader:
    """The reader of a target, by its kind or by what its columns hold.

    Raises:
        ConfigError: the kind has to be given.
    """
    kind = label.kind or _guess(label, table)
    if kind == "class":
        if len(label.read) > 1:
            raise ConfigError(f"label {label.name}: a class is one column, not {len(label.read)}")
        return ClassReader(label, is_csv=table.is_csv, num_classes=num_classes)
    return MatrixReader(label, kind)


def _guess(label: LabelColumns, table: TableFiles) -> Kind:
    types = [of for name in label.read for of in table.types(name).values()]
    lists = [of for of in types if _is_list(of)]
    if not lists and len(label.read) == 1:
        return "class"
    if table.is_csv:
        raise ConfigError(
            f"label {label.name}: give its kind, as CSV does not say it: "
            f"{label.name}:multilabel or {label.name}:regression"
        )
    values = [of.value_type if _is_list(of) else of for of in types]
    return "regression" if any(pa.types.is_floating(of) for of in values) else "multilabel"


def _is_list(of: Any) -> bool:
    return bool(
        pa.types.is_list(of) or pa.types.is_large_list(of) or pa.types.is_fixed_size_list(of)
    )


@final
class ClassReader(LabelReader):
    """Whole numbers from 0, or names; both are staged as int64, names in order of discovery."""

    def __init__(self, label: LabelColumns, *, is_csv: bool, num_classes: int | None) -> None:
        super().__init__(label, "class")
        self._name, self._is_csv, self._num_classes = label.read[0], is_csv, num_classes
        self._kinds: dict[Any, str] = {}
        self._codes: dict[str | None, int] = {}
        self._code_of: Values = np.empty(0, np.int64)
        # the values that decide whether all are right: the first negative one, the first that is
        # out of range, the largest; and the rows that have them first
        self._telling: dict[str, tuple[int, str]] = {}
        self._wheres: list[str] = []
        self._labelled = 0

    def read(self, batch: Batch) -> Values:
        """Classes, -1 for none, or codes of names.

        Raises:
            DataError: a value is no class.
        """
        column = batch.column(self._name)
        if column.null_count == len(column):
            return np.full(len(column), -1)
        kind = arrow_kind(column.type, numbers=True)
        if kind is None:
            found = f"{batch.file}: column {self._name!r} is {column.type}"
            raise DataError(f"{found}; it must be whole numbers or strings")
        self._kinds.setdefault(kind, batch.file)
        self._refuse_two_kinds()
        column = cast(column, kind, self._name, batch.where)
        return self._names(column, batch) if kind == TEXT else self._numbers(column, batch)

    def _refuse_two_kinds(self) -> None:
        if TEXT in self._kinds and len(self._kinds) > 1:
            found = " and ".join(f"{kind} in {file}" for kind, file in self._kinds.items())
            raise DataError(f"column {self._name!r} is {found}; write it as one type")

    def _numbers(self, column: Any, batch: Batch) -> Values:
        if column.type == pa.float64():
            column = whole_numbers(column, self._name, batch.where)
        y: Values = pc.fill_null(column, -1).to_numpy()
        self._labelled += int(np.count_nonzero(y >= 0))
        self._tell("low", y < -1, y, batch)
        if self._num_classes is not None:
            self._tell("high", y >= self._num_classes, y, batch)
        if y.max() > self._telling.get("top", (-1, ""))[0]:
            self._telling.pop("top", None)
            self._tell("top", y == y.max(), y, batch)
        return y

    def _tell(self, what: str, mask: Values, y: Values, batch: Batch) -> None:
        row = int(np.argmax(mask))
        if mask[row]:
            self._telling.setdefault(what, (int(y[row]), batch.where(row)))

    def _names(self, column: Any, batch: Batch) -> Values:
        found = pc.unique(column)
        for name in found.to_pylist():
            if name not in self._codes:
                self._codes[name] = len(self._codes)
                self._wheres.append(batch.where(pc.index(column, pa.scalar(name, TEXT)).as_py()))
        self._refuse_many_names(batch.where(0))
        codes = np.array([self._codes[name] for name in found.to_pylist()], np.int64)
        values: Values = codes[pc.index_in(column, found).to_numpy(zero_copy_only=False)]
        no_label = [self._codes[name] for name in (None, "") if name in self._codes]
        self._labelled += int(np.count_nonzero(~np.isin(values, no_label)))
        return values

    def _refuse_many_names(self, where: str) -> None:
        if len(self._codes) > _MAX_NAMES:
            raise DataError(
                f"{where}: column {self._name!r} has more than {_MAX_NAMES:,} names of classes; "
                "name another column with label"
            )

    def merge(self, later: LabelReader, where: str) -> None:
        """Takes over names, the values that decide, and the count of labels."""
        assert isinstance(later, ClassReader)
        for kind, file in later._kinds.items():
            self._kinds.setdefault(kind, file)
        self._refuse_two_kinds()
        for name, at in zip(later._codes, later._wheres, strict=True):
            if name not in self._codes:
                self._codes[name] = len(self._codes)
                self._wheres.append(at)
        self._refuse_many_names(where)
        for what, told in later._telling.items():
            if what == "top" and told[0] > self._telling.get("top", (-1, ""))[0]:
                self._telling["top"] = told
            self._telling.setdefault(what, told)
        self._labelled += later._labelled

    def target(self) -> Target | None:
        """The classes.

        Raises:
            DataError: a label is out of range, or wild.
        """
        given = {"num_classes": self._num_classes, "labelled": self._labelled}
        classes = None
        if self._codes:
            names = pa.array(list(self._codes), TEXT)
            self._code_of, num_classes, classes = arrow_labels(
                names, self._name, is_csv=self._is_csv, where=self._wheres.__getitem__, **given
            )
        else:
            told = [*self._telling.values(), (-1, "")]
            y, wheres = np.array([value for value, _ in told]), [where for _, where in told]
            num_classes = count_classes(y, where=wheres.__getitem__, **given)
        if num_classes == 0:
            return None
        return Target(name=self.label.name, kind="class", num_outputs=num_classes, classes=classes)

    def resolve(self, values: Values) -> Values:
        """Classes."""
        return np.where(values < 0, -1, self._code_of[values]) if self._codes else values


@final
class MatrixReader(LabelReader):
    """Several labels of 0, 1 or unknown, or several numbers, in lists or in columns."""

    def __init__(self, label: LabelColumns, kind: Kind) -> None:
        super().__init__(label, kind)
        self._width: int | None = None

    def read(self, batch: Batch) -> Values:
        """int8 or float32 `[n, K]`.

        Raises:
            DataError: a value is none of what the kind allows, or a list has another length.
        """
        blocks = [self._block(batch, name) for name in self.label.read]
        x = np.concatenate(blocks, axis=1)
        if self.kind == "regression":
            return x.astype(np.float32) + np.float32(0)  # no -0.0
        return np.where(np.isnan(x), -1, x).astype(np.int8)

    def _block(self, batch: Batch, name: str) -> Values:
        """float64 `[n, k]`, NaN for none."""
        column = batch.column(name)
        lengths: Values = np.ones(len(column), np.int64)
        if _is_list(column.type):
            lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy()
        else:
            self._width = 1
        if self._width is None:
            self._width = int(lengths.max(initial=-1))
        ragged = (lengths != self._width) & (lengths >= 0)
        if ragged.any() or self._width < 1:
            row = int(np.argmax(ragged))
            found = f"{batch.where(row)}: column {name!r} has {max(lengths[row], 0)} values"
            raise DataError(f"{found}, expected {max(self._width, 1)}, as many in each row")
        values: Values = np.full((len(column), self._width), np.nan)
        flat = pc.list_flatten(column) if _is_list(column.type) else column
        kind = arrow_kind(flat.type, numbers=True)
        if kind == TEXT or (kind is None and not pa.types.is_null(flat.type)):
            raise DataError(f"{batch.where(0)} and on: column {name!r} is {flat.type}, not numbers")
        numbers = pc.cast(flat, pa.float64()).to_numpy(zero_copy_only=False)
        values[lengths >= 0] = numbers.reshape(-1, self._width)
        self._check(values, name, batch)
        return values

    def _check(self, values: Values, name: str, batch: Batch) -> None:
        if self.kind == "multilabel":
            bad = ~(np.isnan(values) | np.isin(values, (-1, 0, 1)))
            allowed = "0, 1, or -1 or no value for unknown"
        else:
            bad = np.abs(values) > float(np.finfo(np.float32).max)
            allowed = "numbers that float32 holds, or no value for none"
        if bad.any():
            row, col = divmod(int(np.argmax(bad)), values.shape[1])
            found = f"{batch.where(row)}: {name} is {values[row, col]:g}"
            raise DataError(f"{found}; {self.kind} labels are {allowed}")

    def merge(self, later: LabelReader, where: str) -> None:
        """Takes over the number of values, which must be the same."""
        assert isinstance(later, MatrixReader)
        if self._width is None or self._width < 1:
            self._width = later._width
        elif later._width not in (None, -1, self._width):
            found = f"{where} and on: column {self.label.read[0]!r} has {later._width} values"
            raise DataError(f"{found}, expected {self._width}, as many in each row")

    def target(self) -> Target | None:
        """The labels or numbers."""
        width = self._width or 1
        names = self.label.read
        return Target(
            name=self.label.name,
            kind=self.kind,
            num_outputs=width * len(names),
            classes=list(names) if len(names) > 1 else None,
        )

    def resolve(self, values: Values) -> Values:
        """As they are."""
        return values
