"""Reads the file in which the person who deploys sets variables of one target."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sessionlake.databricks.bundle.files import FileFault
from sessionlake.databricks.bundle.models import suggest_similar_name
from sessionlake.settings.file import find_line_numbers

_PATH = ".databricks/bundle/{}/variable-overrides.json"


def read_variable_overrides(
    folder: Path, target: str, declared: Mapping[str, Any]
) -> tuple[dict[str, Any], list[FileFault]]:
    """Returns the variables that a target's file of overrides sets, by name, and the faults of the file.

    Without such a file both are empty.

    Args:
        folder: The bundle's folder.
        target: Name of the target.
        declared: The variables that the bundle declares, by name.
    """
    name = _PATH.format(target)
    if not (folder / name).is_file():
        return {}, []
    text = (folder / name).read_text(encoding="utf-8")
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        return {}, [FileFault(name, error.lineno, f"is not valid JSON: {error.msg}, column {error.colno}")]
    if not isinstance(values, dict):
        return {}, [FileFault(name, 1, "must be one JSON object with a value for each variable")]
    lines = find_line_numbers(yaml.compose(text, Loader=yaml.SafeLoader))
    faults = [
        FileFault(name, lines[own,], f"there is no variable {own}{suggest_similar_name(own, list(declared))}")
        for own in values.keys() - declared.keys()
    ]
    return {key: value for key, value in values.items() if key in declared}, faults
