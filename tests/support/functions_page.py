"""Writes `docs/reference/functions.md` from the docstrings of what users import: `make reference`."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from types import FunctionType
from typing import Any

_HEAD = """\
# Python functions

What notebooks and programs of your own import from sessionlake. All else may change without notice.

Made by `make reference` from the docstrings.
"""
PUBLIC = {
    "Settings": ("sessionlake.settings.model", ("load_settings",)),
    "Sessions and batches as of a moment": (
        None,
        ("sessionlake.history.asof.session_as_of", "sessionlake.history.batch_as_of.as_of_batch"),
    ),
    "Status and proof": (
        None,
        (
            "sessionlake.history.status.layer_statuses",
            "sessionlake.history.trace.trace",
            "sessionlake.history.explain.explain",
            "sessionlake.history.missing.missing_offsets",
        ),
    ),
    "Figures": (None, ("sessionlake.gold.query.metrics",)),
    "Declared figures": ("sessionlake.gold", ("Product", "Count", "Sum", "Mean", "Extreme")),
    "Processors": (
        "sessionlake.processors",
        ("Processor", "KeyedProcessor", "Message", "Timer"),
    ),
    "Tests of processors": ("sessionlake.processors.testing", ("run", "Sent")),
    "Notebooks": ("sessionlake.notebook.context", ("NotebookContext",)),
    "Archives": ("sessionlake.bronze.archive.writer", ("write_archive",)),
}


def page() -> str:
    """The whole page, in Markdown."""
    lines = [_HEAD]
    for heading, (module, names) in PUBLIC.items():
        lines += [f"## {heading}", ""]
        for name in names:
            place, _, last = (name if module is None else f"{module}.{name}").rpartition(".")
            lines += [f"### {last}", "", f"`from {place} import {last}`", ""]
            lines += _described(last, getattr(importlib.import_module(place), last))
    return "\n".join(lines)


def _described(name: str, thing: Any) -> Iterator[str]:
    """Signature and docstring of a function, or of a class and its public methods."""
    yield from ("```text", _signature(name, thing), "```", "", _docstring(thing), "")
    for method, inner in vars(thing).items() if inspect.isclass(thing) else ():
        if isinstance(inner, FunctionType) and not method.startswith("_") and inner.__doc__:
            yield from (f"- `{_signature(method, inner)}`: {_docstring(inner).splitlines()[0]}",)
    yield ""


def _signature(name: str, thing: Any) -> str:
    text = re.sub(r"\(self(, )?", "(", str(inspect.signature(thing)))
    return f"{name}{text.replace(chr(39), '')}"


def _docstring(thing: Any) -> str:
    """A docstring in Markdown: Google's sections become lists."""
    text = inspect.getdoc(thing) or ""
    text = re.sub(r"^(Args|Returns|Raises|Attributes|Yields):$", r"**\1**\n", text, flags=re.MULTILINE)
    text = re.sub(r"^    (\w[\w, ]*): ", r"- `\1`: ", text, flags=re.MULTILINE)
    return re.sub(r"^ {4,}", "  ", text, flags=re.MULTILINE)
