"""Checks settings files, and the names and values of environment variables, for other processes than this one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsError

from sessionlake.settings.file import Document, SettingsFile, merge_settings
from sessionlake.settings.known_keys import list_known_keys
from sessionlake.settings.model import (
    DEFAULT_FILE,
    ENV_PREFIX,
    Settings,
    describe_wrong_setting,
    find_key_of_variable,
    may_be_secret,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class SettingsWithoutEnvironment(Settings):
    """The settings of a file as any process reads it: environment variables of this process override nothing."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Returns where pydantic looks for settings: only in the given values."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def find_variable_faults(variables: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the environment variables of the package that set no key, each with a text that says so."""
    for name in variables:
        key = find_key_of_variable(name)
        if key is None:
            continue
        known = list_known_keys(Settings, key[:-1])
        if key[0] not in Settings.model_fields or (known and key[-1] not in known):
            yield name, f"the environment variable {name} is not a key of the settings; known are {', '.join(known)}"


def find_settings_problems(file: SettingsFile) -> list[tuple[int | None, str]]:
    """Returns all wrong settings of a file: the line (None if the setting is not in the file), and a text.

    Environment variables of this process are not read. If secrets were left out of the file, they are assumed to be
    valid.
    """
    return [
        (file.line(item["loc"]), describe_wrong_setting(item, file))
        for item in _list_errors(file.content)
        if not (item["loc"] and file.is_secret(item["loc"]))
    ]


def find_rejected_values(variables: Mapping[str, str | None], file: SettingsFile | None) -> Iterator[tuple[str, str]]:
    """Yields the environment variables whose values the settings do not accept, each with a text that says why.

    All variables are checked together, over the settings of the file. Environment variables of this process are not
    read.

    Args:
        variables: The variables of a process, such as a job on a cluster; None for a value that is not known here.
        file: The settings file that this process reads. If it is None, combinations of keys are not checked.
    """
    own = {name: key for name in variables if (key := find_key_of_variable(name)) is not None}
    base = file or SettingsFile(Document(FilePath(DEFAULT_FILE)), None, {}, frozenset())
    content, keys = base.content, {}
    for name in sorted(own, key=len):
        key, value = own[name], variables[name]
        if value is None:
            continue
        try:
            content = merge_settings(content, _parse_variable(name, value))
        except SettingsError:
            found = "" if may_be_secret(key) else f", found {value!r}"
            yield name, f"{name} must be JSON, because its setting is a list or a mapping{found}"
            continue
        keys[name] = key
    hidden = [key for name, key in own.items() if name not in keys]
    of_file = _list_errors(base.content)
    for item in _list_errors(content):
        cause = _find_cause(item, keys, of_file)
        if cause is None and file is not None:
            cause = _find_cause_of_combination(item, keys, of_file, base, hidden)
        if cause is not None:
            yield cause, f"{cause}: {describe_wrong_setting(item, base)}"


def _parse_variable(name: str, value: str) -> dict[str, Any]:
    """Returns the settings that one variable sets. Raises SettingsError if a list or mapping is not JSON."""
    source = EnvSettingsSource(Settings, env_prefix=ENV_PREFIX, env_nested_delimiter="__")
    source.env_vars = {name.lower(): value}
    return source()


def _list_errors(content: dict[str, Any]) -> list[ErrorDetails]:
    try:
        SettingsWithoutEnvironment(**content)
    except ValidationError as error:
        return error.errors()
    return []


def _find_cause(item: ErrorDetails, keys: Mapping[str, tuple[str, ...]], of_file: Sequence[ErrorDetails]) -> str | None:
    """Returns the variable that sets the wrong value itself; None if there is none, or if the file has this value."""
    above = [name for name, key in keys.items() if item["loc"][: len(key)] == key]
    same = (item["loc"], item["msg"], item["input"])
    if not above or same in [(one["loc"], one["msg"], one["input"]) for one in of_file]:
        return None
    return max(above, key=lambda name: len(keys[name]))


def _find_cause_of_combination(
    item: ErrorDetails,
    keys: Mapping[str, tuple[str, ...]],
    of_file: Sequence[ErrorDetails],
    file: SettingsFile,
    hidden: Iterable[tuple[str, ...]],
) -> str | None:
    """Returns a variable in a section whose keys do not fit together; None if a part of the section is not known.

    Args:
        item: The error.
        keys: The key of each variable.
        of_file: The errors that the file has without variables.
        file: The settings file.
        hidden: Keys of variables whose values are not known.
    """
    section = item["loc"][:-1] if item["type"] == "missing" else item["loc"]
    if not section or (item["loc"], item["msg"]) in [(one["loc"], one["msg"]) for one in of_file]:
        return None
    if file.is_secret(item["loc"]) or any(
        key[: len(section)] == section or section[: len(key)] == key for key in hidden
    ):
        return None
    return next((name for name, key in keys.items() if key[: len(section)] == section), None)
