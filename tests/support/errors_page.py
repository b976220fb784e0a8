"""Writes `docs/reference/errors.md` from the `raise` statements of the code: `make reference`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple, TypeVar

import sessionlake
from support.error_words import TEXTS, WORDS

_First = TypeVar("_First")
VALUES = WORDS | TEXTS
SOURCE = Path(sessionlake.__file__).parent
ROOT = "SessionlakeError"
_HEAD = """\
# Errors

Every error that sessionlake ends with, by its class. Search for a part of your message that has no name or number in
it: a word in capitals, such as TOPIC or FILE, and `…` stand for a value of your case. CAUSE is what the system, Kafka
or Spark said. The command line prints `error: `, the message and the remedy, and exits with the code of the class.

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
        for node, local in _calls(tree):
            if _name(node.func) == "KnownSparkFailure":
                yield from _known_failure(node, constants)
            elif (name := _name(node.func)) in classes and node.args:
                parts = {word.arg: word.value for word in node.keywords}
                for (what, why), fix in _combinations(
                    _combinations(
                        _variants(node.args[0], constants, {}), _variants(parts.get("why"), constants, local)
                    ),
                    _variants(parts.get("fix"), constants, local),
                ):
                    if len(re.findall("[A-Za-z]{2,}", what)) >= _FEWEST_WORDS:
                        yield ErrorText(name, what, why, fix)


def _combinations(first: list[_First], second: list[str]) -> list[tuple[_First, str]]:
    """Returns the pairs of two parts of an error: side by side if both have a text for each of the same cases."""
    return [*zip(first, second, strict=True)] if len(first) == len(second) else [*product(first, second)]


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, dict[str, list[ast.expr]]]]:
    """Yields each call of a module, with the values that its function assigns to each local variable."""

    def walk(node: ast.AST, local: dict[str, list[ast.expr]]) -> Iterator[tuple[ast.Call, dict[str, list[ast.expr]]]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield child, local
            yield from walk(child, _locals(child) if isinstance(child, ast.FunctionDef) else local)

    return walk(tree, {})


def _locals(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _variants(node: ast.expr | None, constants: dict[str, ast.expr], local: dict[str, list[ast.expr]]) -> list[str]:
    """Returns the texts that a part of an error can have: one for each branch and for each value of a variable."""
    if isinstance(node, ast.IfExp):
        return [*_variants(node.body, constants, local), *_variants(node.orelse, constants, local)]
    if isinstance(node, ast.Name) and node.id in local:
        return [text for value in local[node.id] for text in _variants(value, constants, {})]
    return [re.sub("…+", "…", _text(node, constants))]


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
    what, _, fix = re.sub(
        r"\{(\w+)\}", lambda name: VALUES.get(name[1], "…"), _text(node.args[1], constants)
    ).partition(". ")
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
    if isinstance(node, ast.Attribute) and node.attr == "remedy" and isinstance(node.value, ast.Name):
        known = constants.get(node.value.id)
        return _text(known.args[1], constants) if isinstance(known, ast.Call) else "…"
    if isinstance(node, ast.Call) and (advice := TEXTS.get(_name(node.func))):
        return advice
    return "" if node is None else _value_name(node)


def _value_name(node: ast.expr) -> str:
    """Returns the word in capitals that stands for a value: from the name of its variable, or `…` if it says little."""
    if isinstance(node, ast.Call):
        return _result_name(node)
    if isinstance(node, ast.BoolOp):
        return _value_name(node.values[0])
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key = node.slice.value
        if isinstance(key, int) and ast.unparse(node) not in VALUES:
            return _value_name(node.value).removesuffix("S")
        text = key if isinstance(key, str) else ast.unparse(node)
    else:
        text = ast.unparse(node)
    for word in (text, text.rpartition(".")[2]):
        if word in VALUES:
            return VALUES[word]
    return "…"


def _result_name(node: ast.Call) -> str:
    """Returns the word that stands for the result of a call; for a list joined to a text, the word for its items."""
    name = _name(node.func)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "join" and node.args:
        return _value_name(node.args[0])
    if name == "len" or name.startswith("count_"):
        return "NUMBER"
    if name == "format_time":
        return "TIME"
    return VALUES.get(node.func.attr if isinstance(node.func, ast.Attribute) else name, "…")


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
