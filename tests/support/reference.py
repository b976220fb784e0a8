"""Writes the pages of the reference that are made from the code: `make reference`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sessionlake.delta.schemas import page as tables_page
from support import commands_page, errors_page, functions_page, settings_page

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "commands": commands_page.page,
    "errors": errors_page.page,
    "functions": functions_page.page,
    "settings": settings_page.page,
    "tables": tables_page.page,
}
"""What makes each page, by its name."""


if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / f"{name}.md").write_text(page().rstrip("\n") + "\n", encoding="utf-8")
