"""A file on a store, open to read or write, that outlives its store's short absences."""

import io
from typing import Any, final

from dnformer.storage.connect import named
from dnformer.storage.retry import Retry


@final
class RemoteReader(io.RawIOBase):
    """Reads and seeks in a file that fsspec opened; a read that fails is done again.

    Args:
        file: fsspec's.
        uri: names it.
        retry: for how long.
    """

    def __init__(self, file: Any, uri: str, retry: Retry) -> None:
        self._file, self._uri, self._retry = file, uri, retry

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Nothing is read."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Bytes from the file's begin."""
        return int(self._file.tell())

    def readinto(self, buffer: Any, /) -> int:
        """As many bytes as fit and are left."""

        def once() -> bytes:
            with named(self._uri):
                self._file.seek(begin)
                return bytes(self._file.read(len(buffer)))

        begin = self.tell()
        data = self._retry(self._uri, once)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Also the file below."""
        if not self.closed:
            self._file.close()
        super().close()


@final
class RemoteWriter(io.BytesIO):
    """Holds in memory what is written, and puts it as one object when it is closed.

    Args:
        fs: fsspec's file system.
        path: on it.
        uri: names it.
        retry: for how long a put that fails is done again.
    """

    def __init__(self, fs: Any, path: str, *, uri: str, retry: Retry) -> None:
        super().__init__()
        self._fs, self._path, self._uri, self._retry = fs, path, uri, retry

    def close(self) -> None:
        """Puts the object."""
        if self.closed:
            return
        data = self.getvalue()
        super().close()

        def once() -> None:
            with named(self._uri):
                self._fs.pipe_file(self._path, data)

        self._retry(self._uri, once)
