"""Checks settings files and environment variables that other processes will use, such as jobs on a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsError

from sessionlake.settings.file import SettingsFile, YamlDocument, merge_settings
from sessionlake.settings.known_keys import list_known_settings_keys
from sessionlake.settings.model import (
    DEFAULT_FILE,
    ENV_PREFIX,
    Settings,
    describe_settings_error,
    find_settings_key_of_environment_variable,
    may_setting_be_secret,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class SettingsWithoutEnvironment(Settings):
    """Settings that are read from a file alone: environment variables of this process override nothing."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Tells pydantic to take settings only from the arguments of the constructor, not from the environment."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def describe_unknown_environment_variables(variables: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields `(name, text)` for each environment variable that starts like a setting but names no key of the settings.

    The text says what is wrong and which keys are known.

    Args:
        variables: Names of environment variables. Those without the prefix `SESSIONLAKE_` are skipped.
    """
    for name in variables:
        key = find_settings_key_of_environment_variable(name)
        if key is None:
            continue
        known = list_known_settings_keys(Settings, key[:-1])
        if key[0] not in Settings.model_fields or (known and key[-1] not in known):
            yield name, f"the environment variable {name} is not a key of the settings; known are {', '.join(known)}"


def list_settings_errors_with_lines(file: SettingsFile) -> list[tuple[int | None, str]]:
    """Returns `(line, text)` for each wrong setting of a file; the line is None if the setting is not in the file.

    Environment variables of this process are not read. Secrets whose values are not in the file count as valid.
    """
    return [
        (file.find_line_of_key(item["loc"]), describe_settings_error(item, file))
        for item in _list_settings_validation_errors(file.content)
        if not (item["loc"] and file.contains_secret_at_key(item["loc"]))
    ]


def describe_rejected_environment_variables(
    variables: Mapping[str, str | None], file: SettingsFile | None
) -> Iterator[tuple[str, str]]:
    """Yields `(name, text)` for each environment variable whose value the settings do not accept; the text says why.

    All variables are checked together, as overrides of the file's settings. The environment of this process is not
    read.

    Args:
        variables: Names and values of environment variables, such as those of a job; None for a value that is not
            known.
        file: The settings file that the variables override. If it is None, combinations of keys are not checked.
    """
    own = {name: key for name in variables if (key := find_settings_key_of_environment_variable(name)) is not None}
    base = file or SettingsFile(YamlDocument(FilePath(DEFAULT_FILE)), None, {}, frozenset())
    content, keys = base.content, {}
    for name in sorted(own, key=len):
        key, value = own[name], variables[name]
        if value is None:
            continue
        try:
            content = merge_settings(content, _parse_environment_variable(name, value))
        except SettingsError:
            found = "" if may_setting_be_secret(key) else f", found {value!r}"
            yield name, f"{name} must be JSON, because its setting is a list or a mapping{found}"
            continue
        keys[name] = key
    hidden = [key for name, key in own.items() if name not in keys]
    file_errors = _list_settings_validation_errors(base.content)
    for item in _list_settings_validation_errors(content):
        cause = _find_variable_that_causes_error(item, keys, file_errors)
        if cause is None and file is not None:
            cause = _find_variable_that_causes_conflict(item, keys, file_errors, base, hidden)
        if cause is not None:
            yield cause, f"{cause}: {describe_settings_error(item, base)}"


def _parse_environment_variable(name: str, value: str) -> dict[str, Any]:
    """Returns the settings that one environment variable sets, as nested dictionaries.

    Raises:
        SettingsError: The setting is a list or a mapping, but the value is not JSON.
    """
    source = EnvSettingsSource(Settings, env_prefix=ENV_PREFIX, env_nested_delimiter="__")
    source.env_vars = {name.lower(): value}
    return source()


def _list_settings_validation_errors(content: dict[str, Any]) -> list[ErrorDetails]:
    try:
        SettingsWithoutEnvironment(**content)
    except ValidationError as error:
        return error.errors()
    return []


def _find_variable_that_causes_error(
    error: ErrorDetails, keys: Mapping[str, tuple[str, ...]], file_errors: Sequence[ErrorDetails]
) -> str | None:
    """Returns the environment variable that sets the wrong value; None if no variable sets it, or the file has it, too.

    Args:
        error: The error.
        keys: The key of each variable.
        file_errors: The errors that the file has without variables.
    """
    above = [name for name, key in keys.items() if error["loc"][: len(key)] == key]
    same = (error["loc"], error["msg"], error["input"])
    if not above or same in [(one["loc"], one["msg"], one["input"]) for one in file_errors]:
        return None
    return max(above, key=lambda name: len(keys[name]))


def _find_variable_that_causes_conflict(
    error: ErrorDetails,
    keys: Mapping[str, tuple[str, ...]],
    file_errors: Sequence[ErrorDetails],
    file: SettingsFile,
    hidden: Iterable[tuple[str, ...]],
) -> str | None:
    """Returns an environment variable that sets a key in a section whose keys contradict each other.

    Returns None if no variable does, if the file alone has the error, or if a value in the section is not known.

    Args:
        error: The error.
        keys: The key of each variable.
        file_errors: The errors that the file has without variables.
        file: The settings file.
        hidden: Keys of variables whose values are not known.
    """
    section = error["loc"][:-1] if error["type"] == "missing" else error["loc"]
    if not section or (error["loc"], error["msg"]) in [(one["loc"], one["msg"]) for one in file_errors]:
        return None
    if file.contains_secret_at_key(error["loc"]) or any(
        key[: len(section)] == section or section[: len(key)] == key for key in hidden
    ):
        return None
    return next((name for name, key in keys.items() if key[: len(section)] == section), None)
