"""Loads YAML with limits on its size, so that no document can exhaust memory: bytes, nodes after aliases, and depth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

MAX_BYTES = 1 << 20
"""Largest file in bytes. PyYAML needs some seconds for that many."""
MAX_NODES = 100_000
"""Most nodes of a document. An alias counts as all nodes it stands for: nine lines of aliases can stand for a billion.
"""
MAX_DEPTH = 64
"""Deepest nesting of a document."""


class BoundedLoader(yaml.SafeLoader):
    """Loads plain YAML types within the limits. Every error is a `yaml.YAMLError` with a line number."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._nodes = self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Returns the next node.

        Raises:
            yaml.composer.ComposerError: the document exceeds a limit, or a value contains itself.
        """
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs lack its types
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._sizes:
                raise _fault(f"the alias *{event.anchor} is inside the value that it stands for", event.start_mark)
            self._count(self._sizes[id(node)], event.start_mark)
            return node
        with self._deeper(event.start_mark):
            before = self._nodes
            node = super().compose_node(parent, index)
        self._count(1, event.start_mark)
        self._sizes[id(node)] = self._nodes - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Returns a node's value.

        Raises:
            yaml.constructor.ConstructorError: the text has no value, as in the date 2026-99-99.
        """
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"the value cannot be read as {node.tag.rpartition(':')[2]}: {error}", node.start_mark
            ) from None

    def _count(self, nodes: int, mark: yaml.Mark) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _fault(f"more than {MAX_NODES:,} values, with all aliases written out", mark)

    @contextmanager
    def _deeper(self, mark: yaml.Mark) -> Iterator[None]:
        if self._depth >= MAX_DEPTH:
            raise _fault(f"nested deeper than {MAX_DEPTH}", mark)
        self._depth += 1
        yield
        self._depth -= 1


def error_position(error: yaml.YAMLError, text: str) -> tuple[int, int]:
    """Returns line and column of an error in a text, from 1; (0, 0) if the error has no position."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return mark.line + 1, mark.column + 1
    position = getattr(error, "position", None)
    if position is None:
        return 0, 0
    before = text[:position].split("\n")
    return len(before), len(before[-1]) + 1


def _fault(problem: str, mark: yaml.Mark) -> yaml.composer.ComposerError:
    return yaml.composer.ComposerError(None, None, problem, mark)
