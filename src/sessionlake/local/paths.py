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


def convert_path_to_uri(path: Path) -> str:
    """Returns the `file:` URI of a path. Characters that have a meaning in URIs are percent-encoded."""
    return path.absolute().as_uri()


def convert_uri_to_path(uri: str) -> Path:
    """Returns the path that a `file:` URI names. The scheme may be followed by one slash or three."""
    return Path(_decode_percent_encoding(urlsplit(uri).path))


def encode_path_for_delta_log(path: str) -> str:
    """Returns a file's path, relative to its table's folder, in the percent-encoded form that Delta's log has."""
    return quote(os.fsencode(path))


def decode_path_from_delta_log(logged_path: str) -> str:
    """Returns the plain path of a file that an entry of Delta's log names.

    The path is relative to the table's folder, or absolute if the entry has a `file:` URI.
    """
    return (
        str(convert_uri_to_path(logged_path))
        if logged_path.startswith(_SCHEME)
        else _decode_percent_encoding(logged_path)
    )


def resolve_path_of_delta_log(table: Path, logged_path: str) -> Path:
    """Returns the full path of a file that an entry of a table's Delta log names.

    Args:
        table: The table's folder.
        logged_path: The path as the log has it.
    """
    return table / decode_path_from_delta_log(logged_path)


def find_path_without_special_characters(folder: Path) -> Path:
    """Returns the folder, or a symbolic link to it if its path has characters that URIs encode.

    Some readers encode a path more often than they decode it, and so fail on such characters. The link is deleted
    when this process ends.
    """
    return (
        folder
        if quote(os.fsencode(folder)) == str(folder)
        else get_temporary_folder_of_process() / _create_symbolic_link(folder)
    )


@cache
def get_temporary_folder_of_process() -> Path:
    """Returns a temporary folder that only the owner can read and that is deleted when this process ends."""
    places = (tempfile.gettempdir(), *_TEMPORARY)
    plain = (place for place in places if quote(place) == place and os.access(place, os.W_OK | os.X_OK))
    _temporary_folders.append(tempfile.TemporaryDirectory(prefix="sessionlake-", dir=next(plain, None)))
    return Path(_temporary_folders[-1].name)


def create_private_folder(folder: Path) -> Path:
    """Creates a folder that only its owner can read, unless it exists, and returns it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@cache
def _create_symbolic_link(folder: Path) -> str:
    name = f"link-{_create_symbolic_link.cache_info().currsize}"
    (get_temporary_folder_of_process() / name).symlink_to(folder, target_is_directory=True)
    return name


_temporary_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Python deletes these folders when the process ends."""


def _decode_percent_encoding(text: str) -> str:
    return os.fsdecode(unquote_to_bytes(text))
