"""Loads the decoder classes and the functions that feeds name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from sessionlake.errors import ConfigError
from sessionlake.settings.named_code import NamedCodeError, load_named_code


@dataclass(frozen=True)
class NamedDecoder:
    """Identifies the decoder class of a feed, so that every worker can load the class itself.

    Attributes:
        feed: Name of the feed, for errors.
        target: The class as `module:Class`.
        folder: Folder in which modules that are not installed are looked up.
    """

    feed: str
    target: str
    folder: str = ""

    def __call__(self) -> Any:
        """Returns an instance of the class. A process creates only one.

        Raises:
            ConfigError: The class does not exist, or has no method `decode`, or cannot be created without arguments.
        """
        return _load_decoder(self)


@dataclass(frozen=True)
class NamedCheck:
    """Identifies the function of a feed that compares checksums, so that every worker can load it itself.

    Attributes:
        feed: Name of the feed, for errors.
        target: The function as `module:function`.
        folder: Folder in which modules that are not installed are looked up.
    """

    feed: str
    target: str
    folder: str = ""

    def __call__(self) -> Any:
        """Returns the function. Raises ConfigError if it does not exist."""
        return _load_check(self)


@lru_cache(maxsize=256)
def _load_check(named: NamedCheck) -> Any:
    where = f"capture.feeds.{named.feed}.check.with"
    try:
        found = load_named_code(named.target, FunctionType, named.folder)
    except NamedCodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    if not callable(found):
        raise ConfigError(
            f"{where}: {named.target} is not a function",
            fix="Name a function with the arguments `(groups, checksum)` that returns a bool",
        )
    return found


@lru_cache(maxsize=256)
def _load_decoder(named: NamedDecoder) -> Any:
    where = f"capture.feeds.{named.feed}.decoder"
    try:
        found = load_named_code(named.target, type, named.folder)
    except NamedCodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    try:
        decoder = found()
    except Exception as error:
        raise ConfigError(
            f"{where}: the class {named.target} cannot be created without arguments: {type(error).__name__}: {error}",
            fix="Give the class an `__init__` that needs no arguments",
        ) from error
    if not callable(getattr(decoder, "decode", None)):
        raise ConfigError(
            f"{where}: {named.target} has no method `decode`",
            fix="Name a class that has the methods of `sessionlake.feeds.decoder.Decoder`",
        )
    return decoder
