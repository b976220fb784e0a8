"""Finds regular expressions that can take very long to match a topic name, because the engine tries every possibility.

Clients that create topics choose their names. If a pattern can match a name in many ways, Python's and Java's engines
try all of them before they reject the name, and bronze hangs. A way is a path through the pattern's position automaton
(Glushkov 1961). Its states are the places in the pattern that read a character. There are two cases (Weideman et al.,
"Analyzing matching time behavior of backtracking regular expression matchers", 2016):

- Exponentially many ways: a state can return to itself in two ways that read the same text, as in `(a+)+`.
- Polynomially many ways: loops that read the same text follow each other, as in `.*.*.*`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

_NAME = string.ascii_letters + string.digits + "._-"
"""The characters that a topic's name may have."""
_ANY = (1 << len(_NAME)) - 1
_MAX_LOOPS = 4
"""The most loops in a row that may read the same text. Four loops split 249 characters in 2.5 million ways."""
_AMBIGUOUS = "a repeated part of it can read the same text in several ways, as in (a+)+"
_MAX_PAIRS = 40_000
_MAX_COPIES = 64

State = int
Pair = tuple[State, State]


@lru_cache
def find_reason_of_slow_regex_matching(pattern: str) -> str | None:
    """Returns a text that says why some topic name can take very long to match the pattern; None if none can.

    Args:
        pattern: A valid regular expression.
    """
    nfa = _RegexPositionAutomaton(bool(re.compile(pattern).flags & re.IGNORECASE), "|" in pattern)
    # The standard library's parser has had no public name since Python 3.11.
    try:
        nfa.add_parsed_regex(import_module("re._parser").parse(pattern))
    except _UnboundedMatchingTimeError as error:
        return str(error)
    loops = _find_graph_loops(range(len(nfa.reads)), nfa.list_next_states)
    for loop in loops:
        if len(loop) ** 2 > _MAX_PAIRS:
            return "a repeated part of it is too large to be checked"
        if nfa.is_loop_ambiguous(loop):
            return _AMBIGUOUS
    if nfa.find_most_loops_in_a_row(loops) > _MAX_LOOPS:
        return f"more than {_MAX_LOOPS} repeated parts of it can read the same text, as in .*.*.*.*.*"
    return None


class _UnboundedMatchingTimeError(ValueError):
    """A part of a pattern can take unlimited time to match, so the pattern is refused. The text says which part."""


@dataclass(frozen=True)
class _RegexPart:
    """A part of a pattern, as states of the automaton.

    Attributes:
        first: The states at which a match of the part can begin, each with the number of ways to begin there.
        last: The states at which a match of the part can end, each with the number of ways to end there.
        empty: True if the part can match an empty text.
    """

    first: Counter[State]
    last: Counter[State]
    empty: bool


_NOTHING = _RegexPart(Counter(), Counter(), empty=True)


@dataclass
class _RegexPositionAutomaton:
    """The position automaton of a pattern. Its states are the places in the pattern that read a character.

    Attributes:
        ignores_case: True if the pattern ignores case.
        has_branches: True if the pattern has alternatives. Python's parser turns `(a|b)` into a set, Java does not.
        depth: The number of repeats around the part that is being added.
        reads: For each state, the characters that it reads, as a bit mask.
        next: For each state, its successors, each with the number of ways to it.
    """

    ignores_case: bool
    has_branches: bool
    depth: int = 0
    reads: list[int] = field(default_factory=list)
    next: list[Counter[State]] = field(default_factory=list)

    def list_next_states(self, state: State) -> Iterable[State]:
        """Returns the states of the automaton that can follow a state, which is one of its states."""
        return self.next[state]

    def add_parsed_regex(self, parsed_regex: Iterable[tuple[Any, Any]]) -> _RegexPart:
        """Adds the states of a parsed pattern, and returns where a match of it can begin and end."""
        part = _NOTHING
        for op, value in parsed_regex:
            part = self._join_regex_parts(part, self._add_regex_operation(str(op), value))
        return part

    def is_loop_ambiguous(self, loop: list[State]) -> bool:
        """Returns True if a state of a loop can return to itself in two ways that read the same text."""
        inside = set(loop)
        if any(ways > 1 and to in inside for state in loop for to, ways in self.next[state].items()):
            return True
        pairs = ((p, q) for p in loop for q in loop)
        for component in _find_graph_loops(pairs, lambda pair: self._list_next_state_pairs(pair, inside, inside)):
            same = sum(p == q for p, q in component)
            if 0 < same < len(component):
                return True
        return False

    def find_most_loops_in_a_row(self, loops: list[list[State]]) -> int:
        """Returns the largest number of loops in a row of which each can read the text that the next one reads."""
        longest: list[int] = []
        for number, loop in enumerate(loops):  # loops that can follow a loop come before it in the list
            reached = self._find_states_reachable_from_loop(loop)
            behind = (
                longest[n]
                for n in range(number)
                if loops[n][0] in reached and self._can_loops_read_same_text(loop, loops[n])
            )
            longest.append(1 + max(behind, default=0))
        return max(longest, default=0)

    def _can_loops_read_same_text(self, left: list[State], right: list[State]) -> bool:
        """Returns True if two loops can read the same text."""
        mine, others = set(left), set(right)
        if len(left) * len(right) > _MAX_PAIRS:
            return True
        pairs = ((p, q) for p in left for q in right)
        return bool(_find_graph_loops(pairs, lambda pair: self._list_next_state_pairs(pair, mine, others)))

    def _list_next_state_pairs(
        self, pair: Pair, states_of_first: set[State], states_of_second: set[State]
    ) -> Iterator[Pair]:
        """Yields the pairs of states that follow a pair of states and can read the same character."""
        for p in self.next[pair[0]]:
            for q in self.next[pair[1]]:
                if p in states_of_first and q in states_of_second and self.reads[p] & self.reads[q]:
                    yield p, q

    def _find_states_reachable_from_loop(self, loop: list[State]) -> set[State]:
        """Returns the states that can be reached from the states of a loop, including these."""
        found, left = set(loop), list(loop)
        while left:
            new = set(self.next[left.pop()]) - found
            found |= new
            left.extend(new)
        return found

    def _add_regex_operation(self, operator: str, value: Any) -> _RegexPart:
        """Adds the states of one operation of a parsed pattern, such as a repetition."""
        if operator in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            return self._add_regex_repetition(*value)
        if operator == "BRANCH":
            parts = [self.add_parsed_regex(tree) for tree in value[1]]
            first, last = Counter[State](), Counter[State]()
            for part in parts:
                first.update(part.first)
                last.update(part.last)
            if sum(part.empty for part in parts) > 1 and self.depth:  # the parser leaves two empty branches of (a|a)
                raise _UnboundedMatchingTimeError(_AMBIGUOUS)
            return _RegexPart(first, last, empty=any(part.empty for part in parts))
        if operator in {"SUBPATTERN", "ATOMIC_GROUP"}:
            return self.add_parsed_regex(value[-1] if operator == "SUBPATTERN" else value)
        if operator in {"ASSERT", "ASSERT_NOT"}:
            self.add_parsed_regex(value[1])
            return _NOTHING
        if operator == "AT":
            return _NOTHING
        if operator.startswith("GROUPREF"):
            raise _UnboundedMatchingTimeError("it refers back to a group, as in (a)\\1")
        self.reads.append(self._build_bit_mask_of_characters(operator, value))
        self.next.append(Counter())
        state = Counter({len(self.reads) - 1: 1})
        return _RegexPart(state, state, empty=False)

    def _add_regex_repetition(self, least_count: int, most_count: Any, tree: Any) -> _RegexPart:
        """Adds the states of a repeated part. Raises an `_UnboundedMatchingTimeError` if the part can be empty."""
        before = len(self.reads)
        self.depth += most_count != 1
        part = self.add_parsed_regex(tree)
        self.depth -= most_count != 1
        if most_count == 1:
            return _RegexPart(part.first, part.last, empty=part.empty or least_count == 0)
        if part.empty:
            raise _UnboundedMatchingTimeError("it repeats a part that can be empty, as in (a*)*")
        if least_count == most_count and (len(self.reads) - before) * least_count <= _MAX_COPIES:
            for _ in range(least_count - 1):
                part = self._join_regex_parts(part, self.add_parsed_regex(tree))
            return part
        self._link_end_to_start(part, part)
        return _RegexPart(part.first, part.last, empty=least_count == 0)

    def _join_regex_parts(self, left: _RegexPart, right: _RegexPart) -> _RegexPart:
        """Returns the part that matches a text of `left` and then one of `right`."""
        self._link_end_to_start(left, right)
        first = left.first + right.first if left.empty else left.first
        last = left.last + right.last if right.empty else right.last
        return _RegexPart(first, last, empty=left.empty and right.empty)

    def _link_end_to_start(self, left: _RegexPart, right: _RegexPart) -> None:
        """Makes the states at which `right` begins follow those at which `left` ends."""
        for p, ways in left.last.items():
            for q, more in right.first.items():
                self.next[p][q] += ways * more

    def _build_bit_mask_of_characters(self, operator: str, value: Any) -> int:
        """Returns the characters of topic names that an operation reads, as a bit mask."""
        if operator == "IN":
            negated = str(value[0][0]) == "NEGATE"
            found = 0
            for item in value[negated:]:
                more = self._build_bit_mask_of_characters(str(item[0]), item[1])
                if found & more and self.depth and self.has_branches:
                    raise _UnboundedMatchingTimeError(_AMBIGUOUS)
                found |= more
            return _ANY & ~found if negated else found
        if operator in {"LITERAL", "RANGE", "NOT_LITERAL"}:
            low, high = value if operator == "RANGE" else (value, value)
            found = sum(
                1 << n
                for n, c in enumerate(_NAME)
                if any(low <= ord(x) <= high for x in self._list_character_in_both_cases(c))
            )
            return _ANY & ~found if operator == "NOT_LITERAL" else found
        if operator == "CATEGORY":
            kind = {"DIGIT": r"\d", "WORD": r"\w", "SPACE": r"\s"}[str(value).rsplit("_", 1)[-1]]
            found = sum(1 << n for n, c in enumerate(_NAME) if re.fullmatch(kind, c))
            return _ANY & ~found if "_NOT_" in str(value) else found
        return _ANY

    def _list_character_in_both_cases(self, character: str) -> str:
        """Returns the character, followed by its other case if the pattern ignores case."""
        return character + character.swapcase() if self.ignores_case else character


def _find_graph_loops(nodes: Iterable[Any], list_successors: Any) -> list[list[Any]]:
    """Returns the loops of a graph: its strongly connected components that have a cycle (Tarjan 1972).

    A loop comes before every loop from which it can be reached.
    """
    index: dict[Any, int] = {}
    low: dict[Any, int] = {}
    stack: list[Any] = []
    on_stack: set[Any] = set()
    found: list[list[Any]] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(list(list_successors(root))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, left = work[-1]
            for to in left:
                if to not in index:
                    index[to] = low[to] = len(index)
                    stack.append(to)
                    on_stack.add(to)
                    work.append((to, iter(list(list_successors(to)))))
                    break
                if to in on_stack:
                    low[node] = min(low[node], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    component, stack[at:] = stack[at:], []
                    on_stack.difference_update(component)
                    if len(component) > 1 or node in list(list_successors(node)):
                        found.append(component)
    return found
