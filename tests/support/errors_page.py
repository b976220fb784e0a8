"""Writes `docs/reference/errors.md` from the `raise` statements of the code: `make reference`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
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

Made by `make reference` from the texts in the code.
"""


_ABOUT_SETTINGS = "ConfigError"
_SETTINGS = """\
### Mistakes in settings

The error names the file, the line and the key, and says what is wrong. Correct the key and start again:
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
        if name == _ABOUT_SETTINGS:
            lines += [_SETTINGS, *(f"- {text}" for text in sorted(set(_settings_texts()))), ""]
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
    assigned = {module: _assigned(tree) for module, tree in _modules().items()}
    for module, tree in _modules().items():
        constants = _imported(tree, assigned) | assigned[module]
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) == "KnownFailure":
                yield from _known_failure(node, constants)
            elif isinstance(node, ast.Call) and (name := _name(node.func)) in classes and node.args:
                parts = {word.arg: word.value for word in node.keywords}
                what, why, fix = (
                    re.sub("…+", "…", _text(part, constants))
                    for part in (node.args[0], parts.get("why"), parts.get("fix"))
                )
                if len(re.findall("[A-Za-z]{2,}", what)) >= _FEWEST_WORDS:
                    yield ErrorText(name, what, why, fix)


def _settings_texts() -> Iterator[str]:
    """Yields what the validators of settings say, which becomes part of a ConfigError."""
    for module, tree in _modules().items():
        if module.startswith("sessionlake.settings"):
            constants = _assigned(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and _name(node.func) == "ValueError" and node.args:
                    text = re.sub("…+", "…", _cell(_text(node.args[0], constants)))
                    if len(re.findall("[A-Za-z]{2,}", text)) >= _FEWEST_WORDS:
                        yield text


def _known_failure(node: ast.Call, constants: dict[str, ast.expr]) -> Iterator[ErrorText]:
    """Yields the text that replaces a failure of Spark. A text of one sentence is only the beginning of an error."""
    what, _, fix = re.sub(r"\{\w+\}", "…", _text(node.args[1], constants)).partition(". ")
    if fix:
        yield ErrorText(_name(node.args[0]), what, "", fix)


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Returns the values of a module's own constants."""
    named = {_name(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    return {name: value for name, value in named.items() if name.isupper()}


def _imported(tree: ast.Module, assigned: dict[str, dict[str, ast.expr]]) -> dict[str, ast.expr]:
    """Returns the values of constants that a module imports from others."""
    return {
        alias.asname or alias.name: assigned[node.module][alias.name]
        for node in tree.body if isinstance(node, ast.ImportFrom) and node.module in assigned
        for alias in node.names if alias.name in assigned[node.module]
    }  # fmt: skip


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.FloorDiv: operator.floordiv,
    ast.Mult: operator.mul,
}


def _text(node: ast.expr | None, constants: dict[str, ast.expr]) -> str:
    """Returns a text of the code, with `…` for each value. Constants are filled in."""
    if isinstance(node, ast.FormattedValue):
        node = node.value
    while isinstance(node, ast.Name) and node.id in constants:
        node = constants[node.id]
    if isinstance(node, ast.Constant):
        return node.value.decode() if isinstance(node.value, bytes) else str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, constants) for part in node.values)
    if isinstance(node, ast.BinOp):
        return _combined(_text(node.left, constants), node.op, _text(node.right, constants))
    return "" if node is None else "…"


def _combined(left: str, op: ast.operator, right: str) -> str:
    """Returns two texts joined, the result of a calculation with numbers, or `…` if it needs a value."""
    if isinstance(op, ast.Add) and not (left.isdigit() or right.isdigit()):
        return left + right
    if type(op) in _ARITHMETIC and left.isdigit() and right.isdigit():
        return str(_ARITHMETIC[type(op)](int(left), int(right)))
    return "…"


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _trees() -> list[ast.Module]:
    return [*_modules().values()]


@cache
def _modules() -> dict[str, ast.Module]:
    """Returns all modules of the package, parsed, by name."""
    files = sorted(SOURCE.rglob("*.py"))
    return {_module_name(file): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def _module_name(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
