"""Finds the class of a configured processor, checks it, and creates an instance, before any data is read or written."""

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
from sessionlake.ledger.entries import hash_settings_of_layers
from sessionlake.processors.api import KeyedProcessor, Processor
from sessionlake.processors.output import OutputColumns
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.settings.named_code import NamedCodeError, load_named_code

GROUP = "sessionlake.processors"


@dataclass(frozen=True)
class ProcessorClassReference:
    """Identifies a processor's class and options, so that every worker can load the class itself.

    Attributes:
        name: The processor's name in the configuration.
        target: The class: an entry point of the group `sessionlake.processors`, or `module:Class`.
        options: Keyword arguments of the class.
        folder: Folder in which modules that are not installed are looked up.
    """

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ""

    def load_processor(self) -> Processor[Any]:
        """Loads the class of a processor without a key, and returns an instance.

        Raises:
            ConfigError: The class is not found, is not a `Processor`, or does not accept the options.
        """
        return create_processor(self, _import_class(self))

    def load_keyed_processor(self) -> KeyedProcessor[Any]:
        """Loads the class of a processor with a key, and returns an instance.

        Raises:
            ConfigError: The class is not found, is not a `KeyedProcessor`, or does not accept the options.
        """
        processor: KeyedProcessor[Any] = _create_instance(self, _import_class(self), KeyedProcessor)
        _require_state_type(self, processor)
        return processor


def create_processor_class_reference(config: ProcessorSettings) -> ProcessorClassReference:
    """Returns the reference by which workers find the class of a configured processor.

    Modules that are not installed are looked up in the working folder.
    """
    return ProcessorClassReference(config.name, config.target, config.options, str(Path.cwd()))


def hash_processor_settings(settings: Settings, config: ProcessorSettings) -> str:
    """Returns a hash of all settings that decide a processor's results. It is stored in ledger entries."""
    return hashlib.sha256((hash_settings_of_layers(settings) + config.model_dump_json()).encode()).hexdigest()[:16]


def create_processor(ref: ProcessorClassReference, processor_class: Any) -> Processor[Any]:
    """Returns an instance of a processor class, created with the configured options.

    Args:
        ref: The options, and the name for errors.
        processor_class: The object that the configuration names. It should be a class.

    Raises:
        ConfigError: The object is not a processor class, has wrong declarations, or does not accept the options.
    """
    processor: Processor[Any] = _create_instance(ref, processor_class, Processor)
    require_declarations(ref, processor)
    return processor


def _create_instance(ref: ProcessorClassReference, processor_class: Any, base_class: type[Any]) -> Any:
    if not (inspect.isclass(processor_class) and issubclass(processor_class, base_class)):
        raise ConfigError(
            f"processors.{ref.name}.class: {ref.target} is not a subclass of "
            f"sessionlake.processors.{base_class.__name__}",
            fix="Derive the class from it, or name another class",
        )
    if inspect.isabstract(processor_class):
        missing = " or ".join(sorted(getattr(processor_class, "__abstractmethods__", ())))
        raise ConfigError(
            f"processors.{ref.name}.class: {ref.target} does not define {missing}",
            fix="Add what is missing to the class",
        )
    try:
        inspect.signature(processor_class).bind(**ref.options)
    except TypeError as error:
        raise ConfigError(
            f"processors.{ref.name}.options: {ref.target} does not accept them ({error})",
            fix=f"Give options that it accepts: {inspect.signature(processor_class)}",
        ) from None
    try:
        return processor_class(**ref.options)
    except Exception as error:
        raise ConfigError(
            f"processors.{ref.name}.options: {ref.target} does not accept them: {type(error).__name__}: {error}",
            fix="Correct the options, which are arguments of the class's `__init__`",
        ) from error


def require_declarations(ref: ProcessorClassReference, processor: Processor[Any]) -> None:
    """Checks the attributes that a processor class must declare: `state`, `version` and `output`.

    Raises:
        ConfigError: A declaration cannot be used.
    """
    state = _require_state_type(ref, processor)
    try:
        msgspec.msgpack.Decoder(state)
    except (TypeError, NameError) as error:
        raise ConfigError(
            f"processors.{ref.name}.class: the state class of {ref.target}, {state.__name__}, cannot "
            f"be stored: {error}",
            fix="Give its fields types that msgspec can encode",
        ) from None
    if not isinstance(processor.version, int) or processor.version < 1:
        raise ConfigError(
            f"processors.{ref.name}.class: {ref.target}.version must be an integer from 1 on, "
            f"found {processor.version!r}",
            fix="Set `version` to a whole number, 1 for a new class",
        )
    try:
        OutputColumns(getattr(processor, "output", {}))
    except ValueError as error:
        raise ConfigError(
            f"processors.{ref.name}.class: {ref.target}.output: {error}",
            fix="Correct `output` of the class: names and types of the columns",
        ) from None


def _require_state_type(ref: ProcessorClassReference, processor: Processor[Any] | KeyedProcessor[Any]) -> type[Any]:
    state = getattr(processor, "state", None)
    if not (inspect.isclass(state) and (dataclasses.is_dataclass(state) or issubclass(state, msgspec.Struct))):
        raise ConfigError(
            f"processors.{ref.name}.class: {ref.target}.state must be a dataclass or a msgspec Struct, found {state!r}",
            fix="Make the state a dataclass or a msgspec Struct",
        )
    found: type[Any] = state
    return found


def _import_class(ref: ProcessorClassReference) -> Any:
    if ":" not in ref.target:
        return _load_entry_point(ref)
    try:
        return load_named_code(ref.target, type, ref.folder)
    except NamedCodeError as error:
        raise ConfigError(f"processors.{ref.name}.class: {error}") from error


def _load_entry_point(ref: ProcessorClassReference) -> Any:
    known = entry_points(group=GROUP)
    if ref.target not in known.names:
        raise ConfigError(
            f"processors.{ref.name}.class: no installed package has an entry point {ref.target!r} in the group "
            f"{GROUP}; there are {', '.join(sorted(known.names)) or 'none'}",
            fix="Name one of them, or a class as `module:Class`",
        )
    try:
        return known[ref.target].load()
    except Exception as error:
        raise ConfigError(
            f"processors.{ref.name}.class: the module of the entry point {ref.target!r} cannot be "
            f"imported: {type(error).__name__}: {error}",
            fix="Correct that module, or install what it needs",
        ) from error
