"""Writes the pages of the reference that are made from the code: `make reference`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sessionlake.delta.schemas import page as tables
from support import decisions_page, errors_page, functions_page, reference_pages
from support.views_page import reasons_section, views_section

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
DECISIONS = "../decisions/README"
PAGES: dict[str, Callable[[], str]] = {
    DECISIONS: decisions_page.page,
    "commands": reference_pages.commands_page,
    "errors": errors_page.page,
    "functions": functions_page.page,
    "settings": reference_pages.settings_page,
    "tables": lambda: f"{tables.render_tables_page()}\n{views_section()}\n{reasons_section()}",
}
"""What makes each page, by its name."""


def written(page: str) -> str:
    """A page as its file has it."""
    return page.rstrip("\n") + "\n"


if __name__ == "__main__":
    for name, made in PAGES.items():
        (FOLDER / f"{name}.md").write_text(written(made()), encoding="utf-8")
