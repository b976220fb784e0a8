"""Conversions between paths and URIs, and private temporary folders. No other module encodes or decodes a path.

Delta's log, delta-rs and Java's settings name files by URIs, in which special characters are encoded (Delta protocol,
"Add File and Remove File"). Hadoop, Spark and Parquet readers take plain paths: to them an encoded path names
another file.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes, urlsplit

_SCHEME = "file:"
# Used if the path of the user's temporary folder has characters that URIs encode.
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - a private folder is created in it


def uri_of(path: Path) -> str:
    """Returns the `file:` URI of a path. Characters that have a meaning in URIs are percent-encoded."""
    return path.absolute().as_uri()


def path_of(uri: str) -> Path:
    """Returns the path that a `file:` URI names. The scheme may be followed by one slash or three."""
    return Path(_decoded(urlsplit(uri).path))


def log_path(path: str) -> str:
    """Encodes a file's path, relative to its table's folder, as actions in Delta's log write it."""
    return quote(os.fsencode(path))


def relative_path(named: str) -> str:
    """Returns the path of a file that an action of Delta's log names.

    The path is relative to the table's folder, or absolute if the action has a `file:` URI.
    """
    return str(path_of(named)) if named.startswith(_SCHEME) else _decoded(named)


def file_of(table: Path, named: str) -> Path:
    """Returns the full path of a file that an action of a table's Delta log names.

    Args:
        table: The table's folder.
        named: The action's `path`.
    """
    return table / relative_path(named)


def plain_link(folder: Path) -> Path:
    """Returns the folder, or a symbolic link to it if its path has characters that URIs encode.

    Some readers encode a path once more often than they decode it, and so fail on such characters. The link is deleted
    when this process ends.
    """
    return folder if quote(os.fsencode(folder)) == str(folder) else process_folder() / _link(folder)


@cache
def process_folder() -> Path:
    """Returns a temporary folder that only the owner can read and that is deleted when this process ends."""
    places = (tempfile.gettempdir(), *_TEMPORARY)
    plain = (place for place in places if quote(place) == place and os.access(place, os.W_OK | os.X_OK))
    _temporary_folders.append(tempfile.TemporaryDirectory(prefix="sessionlake-", dir=next(plain, None)))
    return Path(_temporary_folders[-1].name)


def private_folder(folder: Path) -> Path:
    """Creates a folder that only its owner can read, unless it exists, and returns it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@cache
def _link(folder: Path) -> str:
    name = f"link-{_link.cache_info().currsize}"
    (process_folder() / name).symlink_to(folder, target_is_directory=True)
    return name


_temporary_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Python deletes these folders when the process ends."""


def _decoded(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(text))
