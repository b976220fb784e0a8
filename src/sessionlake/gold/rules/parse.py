"""Parses a rule's condition into a tree. `or` binds weakest, then `and`, then `not`; a pattern encloses two conditions.

- `sum(counter.x) over 72 h < 100 and every counter.y over 2 h > 5`
- `auth.status = 'login' then auth.status = 'logout' within 5 min`
- `status = 'logout' without status = 'login' before it`
- `status = 'open' not followed by status = 'closed' within 1 h`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.rules.condition_tree import (
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
    find_comparisons,
)
from sessionlake.settings.section import Duration, milliseconds

MAX_DEPTH = 32
MAX_WINDOW_MINUTES = 366 * 24 * 60
_TOKEN = re.compile(
    r"\s+|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<quoted>`[^`]+`)"
    r"|(?P<sign><=|>=|!=|<>|==|[<>=(),.-])"
)
_SYNONYMS = {"==": "=", "<>": "!="}
_QUANTIFIERS = {"every": {">": Function.MIN, ">=": Function.MIN, "<": Function.MAX, "<=": Function.MAX}}
_QUANTIFIERS["some"] = {
    sign: Function.MAX if found is Function.MIN else Function.MIN for sign, found in _QUANTIFIERS["every"].items()
}
_DURATION: TypeAdapter[Duration] = TypeAdapter(Duration)


class ConditionParseError(ValueError):
    """The text is not a valid condition.

    Attributes:
        position: position of the error in the text, counted in characters from 0.
        reason: what is wrong, and what is allowed instead.
    """

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.position, self.reason = at, reason


@dataclass(frozen=True)
class _ConditionToken:
    kind: str
    text: str
    position: int

    @property
    def column_name(self) -> str:
        """The column name, without its backticks if it is quoted."""
        return self.text[1:-1] if self.kind == "quoted" else self.text


@dataclass(frozen=True)
class ConditionNameScope:
    """The names that a condition may use.

    Attributes:
        declared: the columns that the configuration declares.
        default: the topics and rows from which a column without a prefix is read.
        sources: for each prefix, such as `auth` in `auth.status`, the topics and rows for which it stands.
    """

    declared: DeclaredColumns
    default: Selection
    sources: Mapping[str, Selection]


def parse_condition(text: str, scope: ConditionNameScope) -> Tree:
    """Parses the text of a condition and returns it as a tree.

    Raises:
        ConditionParseError: the text is not a valid condition.
    """
    return _ConditionParser(_split_tokens(text), scope).parse_complete_condition()


def _split_tokens(text: str) -> list[_ConditionToken]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConditionParseError(
                at, f"{text[at]!r} is not allowed here; write texts in single quotes, as in 'open'"
            )
        if match.lastgroup:
            found.append(_ConditionToken(match.lastgroup, match.group(), at))
        at = match.end()
    return [*found, _ConditionToken("end", "", len(text))]


class _ConditionParser:
    def __init__(self, tokens: list[_ConditionToken], scope: ConditionNameScope) -> None:
        self._tokens, self._scope = tokens, scope
        self._index = self._depth = 0

    def parse_complete_condition(self) -> Tree:
        tree = self._parse_pattern()
        if self._peek_token().kind != "end":
            raise self._create_parse_error("expected and, or, then, without, not followed by, or the end")
        return tree

    def _peek_token(self, ahead: int = 0) -> _ConditionToken:
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def _consume_token(self) -> _ConditionToken:
        token = self._peek_token()
        self._index += 1
        return token

    def _are_next_words(self, *words: str) -> bool:
        """Returns True if the next tokens are these words, in upper or lower case."""
        return all(
            self._peek_token(i).kind != "text" and self._peek_token(i).text.lower() == word
            for i, word in enumerate(words)
        )

    def _skip_words_if_next(self, *words: str) -> bool:
        found = self._are_next_words(*words)
        self._index += len(words) if found else 0
        return found

    def _require_words(self, *words: str) -> None:
        if not self._skip_words_if_next(*words):
            raise self._create_parse_error(f"expected {' '.join(words)}")

    def _create_parse_error(self, expected: str, token: _ConditionToken | None = None) -> ConditionParseError:
        found = token or self._peek_token()
        return ConditionParseError(found.position, f"{expected}, found {found.text or 'the end'}")

    def _parse_pattern(self) -> Tree:
        start = self._peek_token()
        first = self._parse_or_condition()
        if self._skip_words_if_next("then"):
            second = self._parse_event()
            return self._parse_time_limit(PatternKind.THEN, self._require_event_of_one_source(first, start), second)
        if self._skip_words_if_next("without"):
            second = self._parse_event()
            self._require_words("before")
            self._skip_words_if_next("it")
            within = self._parse_duration_ms() if self._skip_words_if_next("within") else None
            return Pattern(PatternKind.WITHOUT, second, self._require_event_of_one_source(first, start), within)
        if self._skip_words_if_next("not", "followed", "by"):
            second = self._parse_event()
            return self._parse_time_limit(
                PatternKind.NOT_FOLLOWED, self._require_event_of_one_source(first, start), second
            )
        if any(not isinstance(leaf, Compared) for leaf in find_comparisons(first)):
            raise ConditionParseError(
                start.position,
                "a column without an aggregate is an event, and a rule needs two of them (then, without … before, "
                "not followed by); to compare numbers over time, use an aggregate, as in max(price) over 5 min > 10",
            )
        return first

    def _parse_time_limit(self, kind: PatternKind, first: Condition, second: Condition) -> Pattern:
        self._require_words("within")
        return Pattern(kind, first, second, self._parse_duration_ms())

    def _parse_event(self) -> Condition:
        start = self._peek_token()
        return self._require_event_of_one_source(self._parse_or_condition(), start)

    def _require_event_of_one_source(self, condition: Condition, start: _ConditionToken) -> Condition:
        selections = {leaf.of for leaf in find_comparisons(condition) if not isinstance(leaf, Compared)}
        if len(selections) != 1 or any(isinstance(leaf, Compared) for leaf in find_comparisons(condition)):
            raise ConditionParseError(
                start.position,
                "an event describes one change of one source: it cannot have aggregates or a second source",
            )
        return condition

    def _parse_or_condition(self) -> Condition:
        parts = [self._parse_and_condition()]
        while self._skip_words_if_next("or"):
            parts.append(self._parse_and_condition())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _parse_and_condition(self) -> Condition:
        parts = [self._parse_not_condition()]
        while self._skip_words_if_next("and"):
            parts.append(self._parse_not_condition())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _parse_not_condition(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConditionParseError(self._peek_token().position, f"nested more than {MAX_DEPTH} levels deep")
        found = self._parse_primary()
        self._depth -= 1
        return found

    def _parse_primary(self) -> Condition:
        if self._skip_words_if_next("not"):
            return Not(self._parse_not_condition())
        if self._skip_words_if_next("("):
            inside = self._parse_or_condition()
            self._require_words(")")
            return inside
        for word, made in (("all", AllOf), ("any", AnyOf)):
            if self._skip_words_if_next(word, "("):
                parts = [self._parse_or_condition()]
                while self._skip_words_if_next(","):
                    parts.append(self._parse_or_condition())
                self._require_words(")")
                return made(tuple(parts))
        return self._parse_comparison()

    def _parse_comparison(self) -> Condition:
        for word, functions in _QUANTIFIERS.items():
            if self._are_next_words(word) and self._peek_token(1).kind in ("name", "quoted"):
                return self._parse_quantified_condition(functions)
        is_window = self._peek_token().text.lower() in {*Function} and self._peek_token(1).text == "("
        if is_window or self._peek_token().kind == "number" or self._peek_token().text == "-":
            start = self._peek_token()
            left = self._parse_operand()
            compare = self._parse_comparison_sign()
            right = self._parse_operand()
            if not isinstance(left, Window) and not isinstance(right, Window):
                raise ConditionParseError(start.position, "a comparison needs an aggregate on at least one side")
            return Compared(left, compare, right)
        return self._parse_field_comparison()

    def _parse_quantified_condition(self, functions: Mapping[str, Function]) -> Condition:
        """Parses `every …` and `some …`: `every price over 2 h > 5` becomes `min(price) over 2 h > 5`."""
        self._consume_token()
        of, metric, name = self._parse_column_reference(self._scope.declared.numbers, "number")
        minutes, over = self._parse_window_length()
        token = self._peek_token()
        compare = self._parse_comparison_sign()
        if compare not in functions:
            raise self._create_parse_error("expected <, <=, > or >=", token)
        function = functions[compare]
        return Compared(
            Window(function, of, metric, minutes, f"{function}({name}) over {over}"), compare, self._parse_operand()
        )

    def _parse_operand(self) -> Operand:
        token = self._consume_token()
        if token.text == "-" and self._peek_token().kind == "number":
            return -float(self._consume_token().text)
        if token.kind == "number":
            return float(token.text)
        word = token.text.lower()
        if word not in {*Function} or not self._skip_words_if_next("("):
            raise self._create_parse_error(
                f"expected a number or one of {', '.join(Function)}, as in max(price) over 5 min", token
            )
        of, metric, name = self._parse_column_reference(self._scope.declared.numbers, "number")
        self._require_words(")")
        minutes, over = self._parse_window_length()
        return Window(Function(word), of, metric, minutes, f"{word}({name}) over {over}")

    def _parse_window_length(self) -> tuple[int, str]:
        self._require_words("over")
        token = self._peek_token()
        length = self._parse_duration_ms()
        minutes, rest = divmod(length, MINUTE_MS)
        if rest or not 1 <= minutes <= MAX_WINDOW_MINUTES:
            raise ConditionParseError(
                token.position, "a window must be a whole number of minutes, at least one and at most 366 days"
            )
        return minutes, " ".join(found.text for found in self._tokens[self._index - 2 : self._index])

    def _parse_duration_ms(self) -> int:
        number, unit = self._consume_token(), self._consume_token()
        try:
            return milliseconds(_DURATION.validate_python(f"{number.text} {unit.text}"))
        except ValidationError as error:
            raise ConditionParseError(number.position, error.errors()[0]["msg"].removeprefix("Value error, ")) from None
        except OverflowError:
            raise ConditionParseError(number.position, "this duration is too long") from None

    def _parse_comparison_sign(self) -> str:
        token = self._consume_token()
        sign = _SYNONYMS.get(token.text, token.text)
        if sign not in OPERATORS:
            raise self._create_parse_error(f"expected one of {', '.join(OPERATORS)}", token)
        return sign

    def _parse_column_reference(self, columns: tuple[str, ...], kind: str) -> tuple[Selection, str, str]:
        """Parses the name of a column, with or without a prefix.

        Args:
            columns: the columns that are allowed.
            kind: the kind of column that is expected, for error texts.

        Returns:
            The topics and rows from which the column is read, its name without prefix, and the text as written.
        """
        of, token = self._scope.default, self._consume_token()
        written = token.text
        if self._skip_words_if_next("."):
            if token.text not in self._scope.sources:
                available = ", ".join(self._scope.sources) or "none"
                raise ConditionParseError(
                    token.position, f"{token.text} is not a source of the rule; available: {available}"
                )
            of, token = self._scope.sources[token.text], self._consume_token()
            written = f"{written}.{token.text}"
        if token.column_name not in columns:
            raise ConditionParseError(
                token.position,
                f"{token.text or 'the end'} is not a {kind} column; available: {', '.join(columns) or 'none'}",
            )
        return of, token.column_name, written

    def _parse_field_comparison(self) -> Condition:
        declared, start = self._scope.declared, self._peek_token()
        of, column, _ = self._parse_column_reference((*declared.numbers, *declared.texts, "deleted"), "number or text")
        if column == "deleted" and self._peek_token().text not in {*OPERATORS, *_SYNONYMS}:
            return Deleted(of)
        sign = self._peek_token()
        compare = self._parse_comparison_sign()
        if column in declared.texts:
            if compare not in {"=", "!="}:
                raise self._create_parse_error("text columns can be compared with = and != only", sign)
            value = self._consume_token()
            if value.kind != "text":
                raise self._create_parse_error(f"{column} is a text column: expected a text in single quotes", value)
            return FieldIs(of, column, compare, value.text[1:-1].replace("''", "'"))
        if column not in declared.numbers:
            raise ConditionParseError(start.position, f"{column} is not a column")
        number = self._parse_operand()
        if isinstance(number, Window):
            raise ConditionParseError(sign.position, "a column without an aggregate can only be compared with a number")
        return FieldIs(of, column, compare, number)
