"""Loads the decoder classes that feeds name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
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
        return _load(self)


@lru_cache(maxsize=256)
def _load(named: NamedDecoder) -> Any:
    where = f"capture.feeds.{named.feed}.decoder"
    try:
        found = load_named_code(named.target, type, named.folder)
    except NamedCodeError as error:
        raise ConfigError(f"{where}: {error}") from error
    try:
        decoder = found()
    except Exception as error:
        raise ConfigError(
            f"{where}: {named.target}() raised {type(error).__name__}: {error}",
            fix="Give the class an `__init__` that needs no arguments",
        ) from error
    if not callable(getattr(decoder, "decode", None)):
        raise ConfigError(
            f"{where}: {named.target} has no method `decode`",
            fix="Name a class that implements `sessionlake.feeds.decoder.Decoder`",
        )
    return decoder
