"""Loads YAML with limits on bytes, nodes and depth, so that no document can exhaust the memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

MAX_BYTES = 1 << 20
"""Largest size of a file in bytes. PyYAML needs some seconds to read a file of this size."""
MAX_NODES = 100_000
"""Most nodes (mappings, lists and values) of a document.

An alias counts as all nodes that it stands for, because nine lines with aliases can stand for a billion nodes.
"""
MAX_DEPTH = 64
"""Most levels of nested mappings and lists in a document."""


class LimitedYamlLoader(yaml.SafeLoader):
    """Loads YAML without custom types. Beyond `MAX_NODES` or `MAX_DEPTH` it raises `yaml.YAMLError` with the line."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._nodes = self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Parses the next node of the document and returns it. Called by PyYAML, which gives `parent` and `index`.

        Raises:
            yaml.composer.ComposerError: the document has too many nodes or levels, or a value contains itself.
        """
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs lack its types
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._sizes:
                raise _make_yaml_error(
                    f"the alias *{event.anchor} is inside the value that it stands for", event.start_mark
                )
            self._count_yaml_nodes(self._sizes[id(node)], event.start_mark)
            return node
        with self._enter_nested_level(event.start_mark):
            before = self._nodes
            node = super().compose_node(parent, index)
        self._count_yaml_nodes(1, event.start_mark)
        self._sizes[id(node)] = self._nodes - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Returns the value of a YAML node as a Python object.

        Raises:
            yaml.constructor.ConstructorError: the text is not a valid value, such as the date 2026-99-99.
        """
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"the value cannot be read as {node.tag.rpartition(':')[2]}: {error}", node.start_mark
            ) from None

    def _count_yaml_nodes(self, nodes: int, mark: yaml.Mark) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _make_yaml_error(f"more than {MAX_NODES:,} values, with all aliases written out", mark)

    @contextmanager
    def _enter_nested_level(self, mark: yaml.Mark) -> Iterator[None]:
        if self._depth >= MAX_DEPTH:
            raise _make_yaml_error(f"nested deeper than {MAX_DEPTH}", mark)
        self._depth += 1
        yield
        self._depth -= 1


def find_yaml_error_position(error: yaml.YAMLError, text: str) -> tuple[int, int]:
    """Returns the line and column of a YAML error, both counted from 1; `(0, 0)` if its position is not known."""
    problem, context = getattr(error, "problem_mark", None), getattr(error, "context_mark", None)
    # A quote or a bracket that is never closed is reported at the end of the text, but began where the context says.
    is_at_end = problem is not None and not text[problem.index :].strip("\0\n ")
    mark = context if context is not None and (problem is None or is_at_end) else problem
    if mark is not None:
        return mark.line + 1, mark.column + 1
    position = getattr(error, "position", None)
    if position is None:
        return 0, 0
    before = text[:position].split("\n")
    return len(before), len(before[-1]) + 1


def explain_yaml_error(error: yaml.YAMLError) -> str:
    """Returns what is wrong with a YAML text and how to correct it; PyYAML's own words for unknown errors."""
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    for pattern, text in _EXPLANATIONS:
        if found := re.search(pattern, problem):
            return found.expand(text)
    return problem


_EXPLANATIONS = (
    (r"found character '\\t' that", r"the line has a tab. Indent with spaces instead"),
    (r"found character ('.') that", r"a value begins with \1. Put the value in quotes"),
    (r"expected <block end>", r"the line is indented otherwise than those above. Indent it as far as its neighbours"),
    (r"expected ',' or '}'", r"a { is not closed, or a comma is missing. Add the missing } or comma"),
    (r"expected ',' or '\]'", r"a [ is not closed, or a comma is missing. Add the missing ] or comma"),
    (r"found unexpected end of stream", r"a quote is not closed. Add the quote at the value's end"),
    (r"could not find expected ':'", r"a key has no value behind it. Write it as key: value, with a space"),
    (
        r"mapping values are not allowed here",
        r"a colon is where a value should be. Put the value in quotes, or correct the indentation",
    ),
    (r"found unknown escape character ('.+')", r"\\ before \1 is no escape. Use single quotes instead of double ones"),
    (r"found undefined alias '(.+)'", r"*\1 stands for nothing. Write &\1 before the value above that it stands for"),
    (r"^second occurrence$", r"a name behind & is used twice. Give each value its own name"),
    (r"constructor for the tag '(.+)'", r"the tag '\1' is unknown. Correct or remove it"),
    (r"expected the node content", r"a value or a closing bracket is missing. Add it"),
)
"""Regular expressions for PyYAML's error texts, each with an explanation for the file's author."""


def _make_yaml_error(problem: str, mark: yaml.Mark) -> yaml.composer.ComposerError:
    return yaml.composer.ComposerError(None, None, problem, mark)
