"""A store as pyarrow's file system, for libraries that take Arrow's: patient as our own access."""

from collections.abc import Callable
from typing import Any, TypeVar, final

from pyarrow import PythonFile
from pyarrow.fs import FileSystemHandler, FSSpecHandler, PyFileSystem

from dnformer.storage.connect import connect, named, patience
from dnformer.storage.paths import is_local, protocol_of
from dnformer.storage.remote_file import RemoteReader, RemoteWriter
from dnformer.storage.retry import Retry

Given = TypeVar("Given")


def wrapped(uri: str) -> tuple[Any, str]:
    """`uri` as pyarrow's (filesystem, path); it takes options and patience along when pickled."""
    fs, path = connect(uri)
    handler: Any = FSSpecHandler(fs)
    if not is_local(uri):
        handler = _PatientHandler(handler, protocol_of(uri), patience().budget_s)
    return PyFileSystem(handler), path


@final
class _PatientHandler(FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Passes each call on to pyarrow's handler of an fsspec file system, again where it failed."""

    def __init__(self, inner: Any, protocol: str, budget_s: float) -> None:
        self.inner = inner
        self._protocol, self._retry = protocol, Retry(budget_s)

    def __reduce__(self) -> tuple[Any, ...]:
        return _PatientHandler, (self.inner, self._protocol, self._retry.budget_s)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PatientHandler) and bool(self.inner == other.inner)

    def __hash__(self) -> int:
        return hash(self._protocol)

    def _uri(self, path: str) -> str:
        return f"{self._protocol}://{path}"

    def _do(self, path: str, action: Callable[[], Given]) -> Given:
        def once() -> Given:
            with named(self._uri(path)):
                return action()

        return self._retry(self._uri(path), once)

    def get_type_name(self) -> str:
        return str(self.inner.get_type_name())

    def normalize_path(self, path: str) -> str:
        return str(self.inner.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> Any:
        return self._do(paths[0], lambda: self.inner.get_file_info(paths)) if paths else []

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._do(selector.base_dir, lambda: self.inner.get_file_info_selector(selector))

    def create_dir(self, path: str, recursive: bool) -> None:
        self._do(path, lambda: self.inner.create_dir(path, recursive))

    def delete_dir(self, path: str) -> None:
        self._do(path, lambda: self.inner.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._do(path, lambda: self.inner.delete_dir_contents(path, missing_dir_ok))

    def delete_root_dir_contents(self) -> None:
        self.inner.delete_root_dir_contents()

    def delete_file(self, path: str) -> None:
        self._do(path, lambda: self.inner.delete_file(path))

    def move(self, src: str, dest: str) -> None:
        self._do(src, lambda: self.inner.move(src, dest))

    def copy_file(self, src: str, dest: str) -> None:
        self._do(src, lambda: self.inner.copy_file(src, dest))

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        file = self._do(path, lambda: self.inner.fs.open(path, "rb"))
        return PythonFile(RemoteReader(file, self._uri(path), self._retry), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        uri, fs = self._uri(path), self.inner.fs
        return PythonFile(RemoteWriter(fs, path, uri=uri, retry=self._retry), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return self.inner.open_append_stream(path, metadata)
