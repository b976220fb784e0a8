"""The last sections of the page of tables: gold's views and their columns, and the reasons of quarantine."""

from __future__ import annotations

from collections.abc import Iterator

from sessionlake.gold.sql.views import DEFINITIONS, ViewDefinition
from sessionlake.protocol.reasons import MEANINGS, Reason


def views_section() -> str:
    """The section of all views, in Markdown."""
    return "\n".join(["## views\n", *(line for name, view in DEFINITIONS.items() for line in _view(name, view))])


def _view(name: str, view: ViewDefinition) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{view.comment}.\n"
    yield f"- A view over: {', '.join(f'`{table}`' for table in view.reads.values())}"
    yield "\n| column | meaning |\n|---|---|"
    for column, comment in view.columns.items():
        yield f"| `{column}` | {comment} |"
    yield ""


def reasons_section() -> str:
    """The section of the reasons in `silver.quarantine`, in Markdown."""
    intro = (
        "Values of `reason` in `silver.quarantine`. If several apply to a message, it has the one that is found first."
    )
    rows = (f"| `{reason}` | {MEANINGS[reason]} |" for reason in Reason)
    return "\n".join(["## reasons\n", f"{intro}\n", "| reason | meaning |", "|---|---|", *rows, ""])
