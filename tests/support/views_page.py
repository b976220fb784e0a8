"""The last section of the page of tables: gold's views and their columns."""

from __future__ import annotations

from collections.abc import Iterator

from sessionlake.gold.sql.views import DEFINITIONS, ViewDefinition


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
