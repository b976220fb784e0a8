"""Writes `docs/reference/errors.md` from the `raise` statements of the code: `make reference`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import sessionlake

SOURCE = Path(sessionlake.__file__).parent
ROOT = "SessionlakeError"
_HEAD = """\
# Errors

Every error that sessionlake ends with, by its class. Search for a part of your message that has no name or number in
it: `…` stands for what is different each time. The command line prints `error: ` and the message, and exits with the
code of the class.

Made by `make reference` from the `raise` statements of the code.
"""


_FEWEST_WORDS = 3
"""A text with fewer words passes on another error's."""


class ErrorText(NamedTuple):
    """An error of one `raise` statement: its class, and its three parts with `…` for values."""

    name: str
    what: str
    why: str
    fix: str


@cache
def page() -> str:
    """Returns the page as Markdown."""
    classes = _classes()
    texts = sorted(set(_texts(classes)))
    lines = [_HEAD]
    for name, group in groupby(texts, key=lambda text: text.name):
        doc, code = classes[name]
        lines += [f"## {name}", "", f"{doc} Exit code {code}.", "", "| message | why, and what to do |", "|---|---|"]
        lines += [f"| {_cell(text.what)} | {_cell('. '.join(part for part in text[2:] if part))} |" for text in group]
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _classes() -> dict[str, tuple[str, int]]:
    """Returns the first paragraph of the docstring and the exit code of each error class."""
    nodes = [node for tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known: dict[str, tuple[str, int]] = {}
    added = True
    while added:
        added = False
        for node in nodes:
            parents = [base.id for base in node.bases if isinstance(base, ast.Name)]
            if node.name not in known and (node.name == ROOT or any(parent in known for parent in parents)):
                code = next((known[parent][1] for parent in parents if parent in known), 1)
                own = [
                    part.value
                    for part in node.body
                    if isinstance(part, ast.Assign) and _name(part.targets[0]) == "exit_code"
                ]
                known[node.name] = (_first_paragraph(node), ast.literal_eval(own[0]) if own else code)
                added = True
    return known


def _first_paragraph(node: ast.ClassDef) -> str:
    return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())


def _texts(classes: dict[str, tuple[str, int]]) -> Iterator[ErrorText]:
    trees = _trees()
    constants = {
        name: node.value
        for tree in trees for node in tree.body if isinstance(node, ast.Assign)
        if (name := _name(node.targets[0])).isupper()
    }  # fmt: skip
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := _name(node.func)) in classes and node.args:
                parts = {word.arg: word.value for word in node.keywords}
                what = _text(node.args[0], constants)
                if len(re.findall("[A-Za-z]{2,}", what)) >= _FEWEST_WORDS:
                    yield ErrorText(name, what, *(_text(parts.get(part), constants) for part in ("why", "fix")))


def _text(node: ast.expr | None, constants: dict[str, ast.expr]) -> str:
    """Returns a text of the code, with `…` for each value. Constants that are texts are filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, constants) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left, constants) + _text(node.right, constants)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return _text(constants[node.id], constants)
    return "" if node is None else "…"


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@cache
def _trees() -> list[ast.Module]:
    return [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(SOURCE.rglob("*.py"))]
