"""Applies the preset that a feed names in `uses`: the keys of the preset, overridden by those of the feed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml

_FOLDER = "sessionlake.feeds.presets"
_KEY = "<key>"
"""Stands for each column of the feed's key."""
_PLAIN_NAME = re.compile(r"[A-Za-z_$@#][\w$@#-]*")


def list_feed_preset_names() -> tuple[str, ...]:
    """Returns the names of all presets, sorted."""
    names = (file.name for file in files(_FOLDER).iterdir())
    return tuple(sorted(name.removesuffix(".yml") for name in names if name.endswith(".yml")))


def apply_preset_to_feed_settings(settings: Any) -> Any:
    """Returns the keys of a feed together with those of the preset that it names in `uses`; the feed's keys win.

    Args:
        settings: The feed's keys as the configuration has them. A value that is no mapping is returned unchanged.

    Raises:
        ValueError: There is no such preset. The text has the names of all presets, and the most similar one.
    """
    if not isinstance(settings, dict) or settings.get("uses") is None:
        return settings
    preset = _copy_named_preset(settings["uses"])
    merged = preset | settings
    if settings.get("decoder") and "messages" in preset:
        merged["messages"] = []
    if settings.get("messages") and "decoder" in preset:
        merged["decoder"] = None
    key = merged.get("key")
    if isinstance(key, list | tuple) and key and all(isinstance(name, str) for name in key):
        merged["messages"] = [
            rule for given in merged.get("messages") or () for rule in _expand_key_columns_in_rule(given, key)
        ]
    return merged


def _copy_named_preset(name: Any) -> dict[str, Any]:
    names = list_feed_preset_names()
    if name not in names:
        near = get_close_matches(str(name), names, 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"uses: there is no preset {name!r}{hint} The presets are {', '.join(names)}")
    return deepcopy(_read_preset_file(str(name)))


@lru_cache(maxsize=64)
def _read_preset_file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((files(_FOLDER) / f"{name}.yml").read_text(encoding="utf-8"))
    return found


def _expand_key_columns_in_rule(rule: Any, key_columns: Sequence[str]) -> Iterator[Any]:
    """Yields a rule in which `<key>` is replaced: in `rows` by all key columns, in `when` by one rule per key column.

    Args:
        rule: The rule as the configuration has it. A value that is no mapping is yielded unchanged.
        key_columns: The names of the feed's key columns.
    """
    if not isinstance(rule, Mapping):
        yield rule
        return
    rows = rule.get("rows")
    expanded = dict(rule)
    if isinstance(rows, list):
        expanded["rows"] = [_expand_key_columns_in_rows(part, key_columns) for part in rows]
    when = rule.get("when")
    if not isinstance(when, dict) or not any(_KEY in str(path) for path in when):
        yield expanded
        return
    for name in key_columns:
        yield expanded | {
            "when": {str(path).replace(_KEY, _quote_field_name(name)): value for path, value in when.items()}
        }


def _expand_key_columns_in_rows(rows_settings: Any, key_columns: Sequence[str]) -> Any:
    row = rows_settings.get("row") if isinstance(rows_settings, Mapping) else None
    if not isinstance(row, dict) or _KEY not in row:
        return rows_settings
    own = {name: path for name, path in row.items() if name != _KEY}
    return {
        **rows_settings,
        "row": own | {name: row[_KEY].replace(_KEY, _quote_field_name(name)) for name in key_columns},
    }


def _quote_field_name(name: str) -> str:
    """Returns a field's name as it must be written in a path: in quotes if it has special characters."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
