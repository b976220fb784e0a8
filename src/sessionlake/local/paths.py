"""Paths as URIs, and URIs as paths: the only place where characters of a path are encoded or decoded.

Delta's log names files by URIs (protocol, "Add File and Remove File"), as do delta-rs and Java's own settings. Hadoop,
Spark and Parquet's readers take plain paths: what is encoded for them names another file.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes, urlsplit

_SCHEME = "file:"
# Where the user's own temporary folder has characters that URIs encode, which links in it are to be without.
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - a private folder is made there


def uri_of(path: Path) -> str:
    """The `file:` URI of a path; every character that could mean something in a URI is encoded."""
    return path.absolute().as_uri()


def path_of(uri: str) -> Path:
    """The path that a `file:` URI names, with one slash or three."""
    return Path(_decoded(urlsplit(uri).path))


def log_path(path: str) -> str:
    """A file's path within its table, as an action of Delta's log has it."""
    return quote(os.fsencode(path))


def relative_path(named: str) -> str:
    """The path within its table of a file that an action of Delta's log names; absolute if the action names a URI."""
    return str(path_of(named)) if named.startswith(_SCHEME) else _decoded(named)


def file_of(table: Path, named: str) -> Path:
    """Where the file is that an action of a table's log names.

    Args:
        table: its folder.
        named: the action's `path`.
    """
    return table / relative_path(named)


def plain_link(folder: Path) -> Path:
    """Another name of a folder, without characters that URIs encode, as long as this process lives.

    For readers that encode a path once more than they decode it. A folder whose path has none is returned as it is.
    """
    return folder if quote(os.fsencode(folder)) == str(folder) else process_folder() / _link(folder)


@cache
def process_folder() -> Path:
    """A folder for what lasts as long as this process, which nobody else can read."""
    places = (tempfile.gettempdir(), *_TEMPORARY)
    plain = (place for place in places if quote(place) == place and os.access(place, os.W_OK | os.X_OK))
    _held.append(tempfile.TemporaryDirectory(prefix="sessionlake-", dir=next(plain, None)))
    return Path(_held[-1].name)


def private_folder(folder: Path) -> Path:
    """Makes a folder, if it is not there, which nobody else can read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@cache
def _link(folder: Path) -> str:
    name = f"link-{_link.cache_info().currsize}"
    (process_folder() / name).symlink_to(folder, target_is_directory=True)
    return name


_held: list[tempfile.TemporaryDirectory[str]] = []
"""Removed when the process ends."""


def _decoded(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(text))
