"""The list of decision records, made from their titles: `make reference`."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
_HEAD = """\
# Decisions

Why it is built this way. `make reference` writes this list.
"""


def page() -> str:
    """The whole page, in Markdown."""
    files = sorted(FOLDER.glob("[0-9]*.md"))
    titles = [file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for file in files]
    return "\n".join([_HEAD, *(f"- [{title}]({file.name})" for title, file in zip(titles, files, strict=True))])
