"""Checks the names of environment variables that set keys of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
