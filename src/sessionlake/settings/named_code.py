"""Loads Python objects that the configuration names as `module:name`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


class ConfiguredCodeError(Exception):
    """A Python object that the configuration names does not exist or cannot be imported; the text says why."""


def load_configured_python_object(target: str, kind: type, folder: str = "") -> Any:
    """Imports a module and returns the object in it that `target` names.

    Args:
        target: The object as `module:name`.
        kind: Type of the object, such as `type` for classes. If the name is wrong, the error lists the objects of this
            type.
        folder: Folder to search for modules that are not installed; empty: none.

    Raises:
        NamedCodeError: The object does not exist, or its module cannot be imported.
    """
    if folder and folder not in sys.path:
        sys.path.append(folder)  # at the end, so that files in the folder do not hide installed modules
    module, _, name = target.partition(":")
    try:
        found: Any = import_module(module)
    except Exception as error:
        why = f"module {module} cannot be imported"
        if isinstance(error, ModuleNotFoundError):
            where = f", nor in {folder}" if folder else ""
            raise ConfiguredCodeError(f"{why} ({type(error).__name__}: {error}); it is not installed{where}") from error
        raise ConfiguredCodeError(f"{why}: {type(error).__name__}: {error}") from error
    if not hasattr(found, name):
        own = [
            key
            for key, value in vars(found).items()
            if isinstance(value, kind) and _is_defined_in_module(value, module)
        ]
        what = "classes" if kind is type else f"{kind.__name__.lower()}s"
        raise ConfiguredCodeError(f"module {module} has no {name}; its {what}: {', '.join(own) or 'none'}")
    return getattr(found, name)


def _is_defined_in_module(value: Any, module: str) -> bool:
    return not isinstance(value, type) or value.__module__ == module
