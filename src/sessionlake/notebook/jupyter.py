"""Converts notebooks from Databricks' source format to Jupyter's: `python -m sessionlake.notebook.jupyter FILE...`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_CELL = "# COMMAND ----------"
_FIRST = "# Databricks notebook source"
_MAGIC = "# MAGIC"
_TEXT = "%md"


def convert_to_jupyter(source_text: str) -> dict[str, Any]:
    """Converts a notebook in Databricks' source format to the JSON object of Jupyter's format, version 4.5."""
    cells = source_text.removeprefix(_FIRST).split(_CELL)
    return {
        "cells": [_create_jupyter_cell(number, text.strip()) for number, text in enumerate(cells) if text.strip()],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def main(paths: list[str]) -> None:
    """Converts notebooks in Databricks' source format, and writes each as an .ipynb file beside its source."""
    for path in map(Path, paths):
        notebook = convert_to_jupyter(path.read_text(encoding="utf-8"))
        text = json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"
        path.with_suffix(".ipynb").write_text(text, encoding="utf-8")


def _create_jupyter_cell(number: int, text: str) -> dict[str, Any]:
    lines = [line.removeprefix(_MAGIC).removeprefix(" ") for line in text.splitlines()]
    if text.startswith(_MAGIC) and lines[0].startswith(_TEXT):
        lines[0] = lines[0].removeprefix(_TEXT).strip()
        body = "\n".join(lines).strip()
        return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": body}
    cell = {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "source": text}
    return cell | {"execution_count": None, "outputs": []}


if __name__ == "__main__":
    main(sys.argv[1:])
