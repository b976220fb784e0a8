"""From the configuration to a processor: its class found, checked and made, before anything is read or written."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec

from sessionlake.errors import ConfigError
from sessionlake.ledger.entries import config_hash
from sessionlake.processors.api import KeyedProcessor, Processor
from sessionlake.processors.output import OutputColumns
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.settings.named_code import NamedCodeError, named_code

GROUP = "sessionlake.processors"


@dataclass(frozen=True)
class ProcessorRef:
    """Names a processor, so that every worker can load it by itself.

    Attributes:
        name: the configured one.
        target: an entry point of the group `sessionlake.processors`, or `module:Class`.
        folder: where modules that are not installed are looked for.
    """

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""

    def load(self) -> Processor[Any]:
        """Makes the processor.

        Raises:
            ConfigError: it cannot be found, is no processor, or does not take the options.
        """
        return make(self, _class_of(self))

    def load_keyed(self) -> KeyedProcessor[Any]:
        """Makes the processor, which has a key.

        Raises:
            ConfigError: as `load`.
        """
        made: KeyedProcessor[Any] = _made(self, _class_of(self), KeyedProcessor)
        _check_state(self, made)
        return made


def ref_of(own: ProcessorSettings) -> ProcessorRef:
    """Names the configured processor; modules that are not installed are looked for in the working folder."""
    return ProcessorRef(own.name, own.target, own.options, str(Path.cwd()))


def config_hash_of(settings: Settings, own: ProcessorSettings) -> str:
    """Fingerprint of the part of the configuration that decides a processor's results."""
    return hashlib.sha256((config_hash(settings) + own.model_dump_json()).encode()).hexdigest()[:16]


def make(ref: ProcessorRef, found: Any) -> Processor[Any]:
    """Makes a processor of a class, with the configured options.

    Raises:
        ConfigError: it is no processor, its declarations cannot be used, or it does not take the options.
    """
    made: Processor[Any] = _made(ref, found, Processor)
    check(ref, made)
    return made


def _made(ref: ProcessorRef, found: Any, wanted: type[Any]) -> Any:
    if not (inspect.isclass(found) and issubclass(found, wanted)):
        raise _wrong(ref, f"{ref.target} is not a subclass of sessionlake.processors.{wanted.__name__}")
    if inspect.isabstract(found):
        raise _wrong(
            ref, f"{ref.target} does not define {' or '.join(sorted(getattr(found, '__abstractmethods__', ())))}"
        )
    try:
        inspect.signature(found).bind(**ref.options)
    except TypeError as error:
        raise ConfigError(
            f"processors.{ref.name}.options: {ref.target} does not take them ({error}); it takes "
            f"{inspect.signature(found)}"
        ) from None
    try:
        return found(**ref.options)
    except Exception as error:
        raise ConfigError(
            f"processors.{ref.name}.options: {ref.target} refuses them: {type(error).__name__}: {error}"
        ) from error


def check(ref: ProcessorRef, made: Processor[Any]) -> None:
    """Refuses a processor whose declarations cannot be used.

    Raises:
        ConfigError: naming the one, and what is allowed.
    """
    state = _check_state(ref, made)
    try:
        msgspec.msgpack.Decoder(state)
    except (TypeError, NameError) as error:
        raise _wrong(ref, f"{ref.target}.state, {state.__name__}, cannot be stored: {error}") from None
    if not isinstance(made.version, int) or made.version < 1:
        raise _wrong(ref, f"{ref.target}.version must be an integer from 1 on, found {made.version!r}")
    try:
        OutputColumns(getattr(made, "output", {}))
    except ValueError as error:
        raise _wrong(ref, f"{ref.target}.output: {error}") from None


def _check_state(ref: ProcessorRef, made: Processor[Any] | KeyedProcessor[Any]) -> type[Any]:
    state = getattr(made, "state", None)
    if not (inspect.isclass(state) and (dataclasses.is_dataclass(state) or issubclass(state, msgspec.Struct))):
        raise _wrong(ref, f"{ref.target}.state must be a dataclass or a msgspec Struct, found {state!r}")
    found: type[Any] = state
    return found


def _class_of(ref: ProcessorRef) -> Any:
    if ":" not in ref.target:
        return _of_entry_point(ref)
    try:
        return named_code(ref.target, type, ref.folder)
    except NamedCodeError as error:
        raise _wrong(ref, str(error)) from error


def _of_entry_point(ref: ProcessorRef) -> Any:
    known = entry_points(group=GROUP)
    if ref.target not in known.names:
        raise _wrong(
            ref,
            f"no installed package has an entry point {ref.target!r} in the group {GROUP}; there are "
            f"{', '.join(sorted(known.names)) or 'none'}. A class is also named as module:Class",
        )
    try:
        return known[ref.target].load()
    except Exception as error:
        raise _wrong(ref, f"entry point {ref.target!r} cannot be imported: {type(error).__name__}: {error}") from error


def _wrong(ref: ProcessorRef, text: str) -> ConfigError:
    return ConfigError(f"processors.{ref.name}.class: {text}")
