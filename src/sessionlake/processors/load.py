"""From the configuration to a processor: its class found, checked and made, before anything is read or written."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import msgspec

from sessionlake.errors import ConfigError
from sessionlake.processors.api import Processor
from sessionlake.processors.output import OutputColumns

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


def make(ref: ProcessorRef, found: Any) -> Processor[Any]:
    """Makes a processor of a class, with the configured options.

    Raises:
        ConfigError: it is no processor, its declarations cannot be used, or it does not take the options.
    """
    if not (inspect.isclass(found) and issubclass(found, Processor)):
        raise _wrong(ref, f"{ref.target} is not a subclass of sessionlake.processors.Processor")
    if inspect.isabstract(found):
        raise _wrong(ref, f"{ref.target} does not define on_message")
    try:
        inspect.signature(found).bind(**ref.options)
    except TypeError as error:
        raise ConfigError(
            f"processors.{ref.name}.options: {ref.target} does not take them ({error}); it takes "
            f"{inspect.signature(found)}"
        ) from None
    try:
        made = found(**ref.options)
    except Exception as error:
        raise ConfigError(
            f"processors.{ref.name}.options: {ref.target} refuses them: {type(error).__name__}: {error}"
        ) from error
    check(ref, made)
    return made


def check(ref: ProcessorRef, made: Processor[Any]) -> None:
    """Refuses a processor whose declarations cannot be used.

    Raises:
        ConfigError: naming the one, and what is allowed.
    """
    state = getattr(made, "state", None)
    if not (inspect.isclass(state) and (dataclasses.is_dataclass(state) or issubclass(state, msgspec.Struct))):
        raise _wrong(ref, f"{ref.target}.state must be a dataclass or a msgspec Struct, found {state!r}")
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


def _class_of(ref: ProcessorRef) -> Any:
    if ref.folder and ref.folder not in sys.path:
        sys.path.append(ref.folder)  # at the end: what is installed is not hidden by what lies about
    if ":" not in ref.target:
        return _of_entry_point(ref)
    module, _, name = ref.target.partition(":")
    try:
        found: Any = import_module(module)
    except Exception as error:
        where = f", nor in {ref.folder}" if ref.folder else ""
        raise _wrong(
            ref,
            f"module {module} cannot be imported ({type(error).__name__}: {error}); it is not installed{where}"
            if isinstance(error, ModuleNotFoundError)
            else f"module {module} cannot be imported: {type(error).__name__}: {error}",
        ) from error
    if not hasattr(found, name):
        own = [key for key, value in vars(found).items() if inspect.isclass(value) and value.__module__ == module]
        raise _wrong(ref, f"module {module} has no {name}; its classes: {', '.join(own) or 'none'}")
    return getattr(found, name)


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
