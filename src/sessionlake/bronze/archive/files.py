"""Archives' files while members are read from them: opened once, and never read into memory whole."""

from __future__ import annotations

import io
import zipfile
from types import TracebackType
from typing import Self

# A zip's directory is read at once: entries enough for all members that a file may have.
_LARGEST_DIRECTORY = 8 * 1024 * 1024


class Files:
    """The files that members are read from: the last one stays open, so that a zip's directory is read once.

    Use as a context manager, which closes it.
    """

    def __init__(self) -> None:
        self._path: str | None = None
        self._open: tuple[zipfile.ZipFile, io.BufferedReader] | None = None

    def zip(self, path: str) -> zipfile.ZipFile:
        """The zip file, opened.

        Raises:
            BadZipFile: it is not one, or its directory is larger than `_LARGEST_DIRECTORY`.
        """
        if self._path != path or self._open is None:
            self.close()
            source = _BoundedReader(io.FileIO(path))
            try:
                self._open = zipfile.ZipFile(source), source
            except BaseException:
                source.close()
                raise
            self._path = path
        return self._open[0]

    def close(self) -> None:
        """Closes what is open."""
        if self._open is not None:
            archive, source = self._open
            self._open = None
            archive.close()
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _BoundedReader(io.BufferedReader):
    """A file that refuses to read a zip's directory of any size into memory."""

    def read(self, size: int | None = -1) -> bytes:
        most = _LARGEST_DIRECTORY + 1
        found = super().read(most if size is None or size < 0 else min(size, most))
        if len(found) == most:
            raise zipfile.BadZipFile(f"its directory has more than {_LARGEST_DIRECTORY} bytes")
        return found
