"""Opens archive files so that their members can be read one after the other without loading the file into memory."""

from __future__ import annotations

import io
import zipfile
from types import TracebackType
from typing import Self

# A zip's directory is read into memory at once. This limit allows entries for all members that a file may have.
_MAX_DIRECTORY_BYTES = 8 * 1024 * 1024


class LastOpenedZip:
    """Keeps the zip file that was opened last open, so that its directory is read only once.

    Use it as a context manager, which closes the file.
    """

    def __init__(self) -> None:
        self._path: str | None = None
        self._open: tuple[zipfile.ZipFile, io.BufferedReader] | None = None

    def open_zip(self, path: str) -> zipfile.ZipFile:
        """Returns a zip file, opened for reading. Closes the file that was opened before, if it is another one.

        Raises:
            BadZipFile: The file is not a zip, or its directory is larger than 8 MiB.
        """
        if self._path != path or self._open is None:
            self.close()
            source = _SizeLimitedZipReader(io.FileIO(path))
            try:
                self._open = zipfile.ZipFile(source), source
            except BaseException:
                source.close()
                raise
            self._path = path
        return self._open[0]

    def close(self) -> None:
        """Closes the zip file that is open, if there is one."""
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


class _SizeLimitedZipReader(io.BufferedReader):
    """A zip file that cannot make Python read a huge directory into memory: `read` raises `BadZipFile` above 8 MiB."""

    def read(self, size: int | None = -1) -> bytes:
        most = _MAX_DIRECTORY_BYTES + 1
        found = super().read(most if size is None or size < 0 else min(size, most))
        if len(found) == most:
            raise zipfile.BadZipFile(f"its directory has more than {_MAX_DIRECTORY_BYTES} bytes")
        return found
