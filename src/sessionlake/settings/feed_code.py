"""Loads the decoder classes and the checksum functions that feeds name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any

from sessionlake.errors import ConfigError
from sessionlake.settings.named_code import ConfiguredCodeError, load_configured_python_object


@dataclass(frozen=True)
class DecoderLoader:
    """Loads the decoder class of a feed. It is sent to workers instead of the class, which cannot always be pickled.

    Attributes:
        feed: Name of the feed, for errors.
        target: The class as `module:Class`.
        folder: Folder in which modules that are not installed are looked up.
    """

    feed: str
    target: str
    folder: str = ""

    def __call__(self) -> Any:
        """Returns an instance of the class. All calls in a process return the same instance.

        Raises:
            ConfigError: The class does not exist, or has no method `decode`, or cannot be created without arguments.
        """
        return _load_decoder(self)


@dataclass(frozen=True)
class ChecksumFunctionLoader:
    """Loads the function with which a feed compares checksums. It is sent to workers instead of the function.

    Attributes:
        feed: Name of the feed, for errors.
        target: The function as `module:function`.
        folder: Folder in which modules that are not installed are looked up.
    """

    feed: str
    target: str
    folder: str = ""

    def __call__(self) -> Any:
        """Returns the function that compares a checksum with a session's rows.

        Raises:
            ConfigError: The function does not exist, or the name stands for something that cannot be called.
        """
        return _load_checksum_function(self)


@lru_cache(maxsize=256)
def _load_checksum_function(loader: ChecksumFunctionLoader) -> Any:
    where = f"capture.feeds.{loader.feed}.check.with"
    try:
        found = load_configured_python_object(loader.target, FunctionType, loader.folder)
    except ConfiguredCodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    if not callable(found):
        raise ConfigError(
            f"{where}: {loader.target} is not a function",
            fix="Name a function with the arguments `(groups, checksum)` that returns a bool",
        )
    return found


@lru_cache(maxsize=256)
def _load_decoder(loader: DecoderLoader) -> Any:
    where = f"capture.feeds.{loader.feed}.decoder"
    try:
        found = load_configured_python_object(loader.target, type, loader.folder)
    except ConfiguredCodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    try:
        decoder = found()
    except Exception as error:
        raise ConfigError(
            f"{where}: the class {loader.target} cannot be created without arguments: {type(error).__name__}: {error}",
            fix="Give the class an `__init__` that needs no arguments",
        ) from error
    if not callable(getattr(decoder, "decode", None)):
        raise ConfigError(
            f"{where}: {loader.target} has no method `decode`",
            fix="Name a class that has the methods of `sessionlake.feeds.decoder.Decoder`",
        )
    return decoder
