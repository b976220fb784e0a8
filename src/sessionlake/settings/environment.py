"""Checks the names and values of environment variables that set keys of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource, SettingsError

from sessionlake.settings.known_keys import list_known_keys
from sessionlake.settings.model import ENV_PREFIX, PROCESS_VARIABLES, Settings


def find_variable_faults(variables: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the environment variables of the package that set no key, each with a text that says so."""
    for name in variables:
        if name.startswith(ENV_PREFIX) and name not in PROCESS_VARIABLES:
            parts = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            known = list_known_keys(Settings, parts[:-1])
            if parts[0] not in Settings.model_fields or (known and parts[-1] not in known):
                yield (
                    name,
                    f"the environment variable {name} is not a key of the settings; known are {', '.join(known)}",
                )


def find_value_faults(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the environment variables whose values the settings do not accept, each with a text that says why."""
    for name, value in variables.items():
        if not name.startswith(ENV_PREFIX) or name in PROCESS_VARIABLES:
            continue
        source = EnvSettingsSource(Settings, env_prefix=ENV_PREFIX, env_nested_delimiter="__")
        source.env_vars = {name.lower(): value}
        try:
            Settings(**source())
        except SettingsError:
            yield name, f"{name} must be JSON, because its setting is a list or a mapping, found {value!r}"
        except ValidationError as error:
            yield name, f"{name}={value!r}: {error.errors()[0]['msg']}"
