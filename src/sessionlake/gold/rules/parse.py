"""The text of a condition to its tree, by precedence: `or`, then `and`, then `not`; a pattern of events last.

sum(counter.x) over 72 h < 100 and every counter.y over 2 h > 5
auth.status = 'login' then auth.status = 'logout' within 5 min
status = 'logout' without status = 'login' before it
status = 'open' not followed by status = 'closed' within 1 h
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from sessionlake.gold.aggregate.sources import Declared
from sessionlake.gold.rules.tree import (
    MINUTE_MS,
    OPERATORS,
    AllOf,
    AnyOf,
    Compared,
    Condition,
    Deleted,
    FieldIs,
    Function,
    Not,
    Operand,
    Pattern,
    PatternKind,
    Selection,
    Tree,
    Window,
    leaves,
)
from sessionlake.settings.capture import Duration, milliseconds

DEEPEST = 32
LONGEST_MINUTES = 366 * 24 * 60
_TOKEN = re.compile(
    r"\s+|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<quoted>`[^`]+`)"
    r"|(?P<sign><=|>=|!=|<>|==|[<>=(),.-])"
)
_SAME = {"==": "=", "<>": "!="}
_MIRRORED = {"every": {">": Function.MIN, ">=": Function.MIN, "<": Function.MAX, "<=": Function.MAX}}
_MIRRORED["some"] = {
    sign: Function.MAX if found is Function.MIN else Function.MIN for sign, found in _MIRRORED["every"].items()
}
_DURATION: TypeAdapter[Duration] = TypeAdapter(Duration)


class ParseError(ValueError):
    """The text is no condition.

    Attributes:
        at: how many characters of the text are in front of what is wrong.
        reason: what is wrong, and what could stand there.
    """

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at, self.reason = at, reason


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int

    @property
    def name(self) -> str:
        """The column that it names: in backticks, one of any name."""
        return self.text[1:-1] if self.kind == "quoted" else self.text


@dataclass(frozen=True)
class Scope:
    """The names that a condition may use.

    Attributes:
        own: which topics and rows a column without a source is about.
        sources: by the names in front of columns.
    """

    declared: Declared
    own: Selection
    sources: Mapping[str, Selection]


def parse(text: str, scope: Scope) -> Tree:
    """The tree that a text stands for.

    Raises:
        ParseError: there is none.
    """
    return _Parser(_tokens(text), scope).whole()


def _tokens(text: str) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ParseError(at, f"{text[at]!r} means nothing here; texts stand in single quotes, as in 'open'")
        if match.lastgroup:
            found.append(_Token(match.lastgroup, match.group(), at))
        at = match.end()
    return [*found, _Token("end", "", len(text))]


class _Parser:
    def __init__(self, tokens: list[_Token], scope: Scope) -> None:
        self._tokens, self._scope = tokens, scope
        self._next = self._depth = 0

    def whole(self) -> Tree:
        tree = self._pattern()
        if self._peek().kind != "end":
            raise self._error("expected and, or, then, without, not followed by, or the end")
        return tree

    # -- tokens

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> _Token:
        token = self._peek()
        self._next += 1
        return token

    def _is(self, *words: str) -> bool:
        """Whether these words come next."""
        return all(self._peek(i).kind != "text" and self._peek(i).text.lower() == word for i, word in enumerate(words))

    def _accept(self, *words: str) -> bool:
        found = self._is(*words)
        self._next += len(words) if found else 0
        return found

    def _expect(self, *words: str) -> None:
        if not self._accept(*words):
            raise self._error(f"expected {' '.join(words)}")

    def _error(self, expected: str, token: _Token | None = None) -> ParseError:
        found = token or self._peek()
        return ParseError(found.at, f"{expected}, found {found.text or 'the end'}")

    # -- what stands for what

    def _pattern(self) -> Tree:
        start = self._peek()
        first = self._or()
        if self._accept("then"):
            second = self._event()
            return self._timed(PatternKind.THEN, self._as_event(first, start), second)
        if self._accept("without"):
            second = self._event()
            self._expect("before")
            self._accept("it")
            within = self._duration_ms() if self._accept("within") else None
            return Pattern(PatternKind.WITHOUT, second, self._as_event(first, start), within)
        if self._accept("not", "followed", "by"):
            second = self._event()
            return self._timed(PatternKind.NOT_FOLLOWED, self._as_event(first, start), second)
        if any(not isinstance(leaf, Compared) for leaf in leaves(first)):
            raise ParseError(
                start.at,
                "a column by itself is an event, of which a rule has two (then, without … before, not followed by); "
                "numbers over time are aggregates, as in max(price) over 5 min > 10",
            )
        return first

    def _timed(self, kind: PatternKind, first: Condition, second: Condition) -> Pattern:
        self._expect("within")
        return Pattern(kind, first, second, self._duration_ms())

    def _event(self) -> Condition:
        start = self._peek()
        return self._as_event(self._or(), start)

    def _as_event(self, condition: Condition, start: _Token) -> Condition:
        selections = {leaf.of for leaf in leaves(condition) if not isinstance(leaf, Compared)}
        if len(selections) != 1 or any(isinstance(leaf, Compared) for leaf in leaves(condition)):
            raise ParseError(start.at, "an event is what one change of one source set: no aggregates, no other source")
        return condition

    def _or(self) -> Condition:
        parts = [self._and()]
        while self._accept("or"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _and(self) -> Condition:
        parts = [self._not()]
        while self._accept("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _not(self) -> Condition:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ParseError(self._peek().at, f"more than {DEEPEST} levels inside one another")
        found = self._single()
        self._depth -= 1
        return found

    def _single(self) -> Condition:
        if self._accept("not"):
            return Not(self._not())
        if self._accept("("):
            inside = self._or()
            self._expect(")")
            return inside
        for word, made in (("all", AllOf), ("any", AnyOf)):
            if self._accept(word, "("):
                parts = [self._or()]
                while self._accept(","):
                    parts.append(self._or())
                self._expect(")")
                return made(tuple(parts))
        return self._comparison()

    def _comparison(self) -> Condition:
        for word, functions in _MIRRORED.items():
            if self._is(word) and self._peek(1).kind in ("name", "quoted"):
                return self._each(functions)
        is_window = self._peek().text.lower() in {*Function} and self._peek(1).text == "("
        if is_window or self._peek().kind == "number" or self._peek().text == "-":
            start = self._peek()
            left = self._operand()
            compare = self._compare()
            right = self._operand()
            if not isinstance(left, Window) and not isinstance(right, Window):
                raise ParseError(start.at, "two numbers are compared, and no aggregate")
            return Compared(left, compare, right)
        return self._field()

    def _each(self, functions: Mapping[str, Function]) -> Condition:
        """`every price over 2 h > 5`: the least is."""
        self._take()
        of, metric, name = self._column(self._scope.declared.numbers, "number")
        minutes, over = self._over()
        token = self._peek()
        compare = self._compare()
        if compare not in functions:
            raise self._error("expected <, <=, > or >=", token)
        function = functions[compare]
        return Compared(
            Window(function, of, metric, minutes, f"{function}({name}) over {over}"), compare, self._operand()
        )

    def _operand(self) -> Operand:
        token = self._take()
        if token.text == "-" and self._peek().kind == "number":
            return -float(self._take().text)
        if token.kind == "number":
            return float(token.text)
        word = token.text.lower()
        if word not in {*Function} or not self._accept("("):
            raise self._error(f"expected a number or one of {', '.join(Function)}, as in max(price) over 5 min", token)
        of, metric, name = self._column(self._scope.declared.numbers, "number")
        self._expect(")")
        minutes, over = self._over()
        return Window(Function(word), of, metric, minutes, f"{word}({name}) over {over}")

    def _over(self) -> tuple[int, str]:
        self._expect("over")
        token = self._peek()
        length = self._duration_ms()
        minutes, rest = divmod(length, MINUTE_MS)
        if rest or not 1 <= minutes <= LONGEST_MINUTES:
            raise ParseError(token.at, "a window is a whole number of minutes, at least one and at most 366 days")
        return minutes, " ".join(found.text for found in self._tokens[self._next - 2 : self._next])

    def _duration_ms(self) -> int:
        number, unit = self._take(), self._take()
        try:
            return milliseconds(_DURATION.validate_python(f"{number.text} {unit.text}"))
        except ValidationError as error:
            raise ParseError(number.at, error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        except OverflowError:
            raise ParseError(number.at, "no time is that long") from None

    def _compare(self) -> str:
        token = self._take()
        sign = _SAME.get(token.text, token.text)
        if sign not in OPERATORS:
            raise self._error(f"expected one of {', '.join(OPERATORS)}", token)
        return sign

    def _column(self, known: tuple[str, ...], kind: str) -> tuple[Selection, str, str]:
        """A column's source and its name, alone and as it is written."""
        of, token = self._scope.own, self._take()
        written = token.text
        if self._accept("."):
            if token.text not in self._scope.sources:
                there = ", ".join(self._scope.sources) or "none"
                raise ParseError(token.at, f"{token.text} is no source of the rule: there is {there}")
            of, token = self._scope.sources[token.text], self._take()
            written = f"{written}.{token.text}"
        if token.name not in known:
            raise ParseError(
                token.at, f"{token.text or 'the end'} is no {kind} column: there is {', '.join(known) or 'none'}"
            )
        return of, token.name, written

    def _field(self) -> Condition:
        declared, start = self._scope.declared, self._peek()
        of, column, _ = self._column((*declared.numbers, *declared.texts, "deleted"), "number or text")
        if column == "deleted" and self._peek().text not in {*OPERATORS, *_SAME}:
            return Deleted(of)
        sign = self._peek()
        compare = self._compare()
        if column in declared.texts:
            if compare not in {"=", "!="}:
                raise self._error("texts are compared by = and !=", sign)
            value = self._take()
            if value.kind != "text":
                raise self._error(f"{column} is a text: expected one in single quotes", value)
            return FieldIs(of, column, compare, value.text[1:-1].replace("''", "'"))
        if column not in declared.numbers:
            raise ParseError(start.at, f"{column} is no column")
        number = self._operand()
        if isinstance(number, Window):
            raise ParseError(sign.at, "a column is compared with a number; two aggregates, with one another")
        return FieldIs(of, column, compare, number)
