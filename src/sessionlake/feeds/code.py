"""Generates Python code that finds values at paths and converts them: parts of a feed's reader in `feeds.compiled`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

from sessionlake.feeds.feed import Feed, KafkaKeyFormat
from sessionlake.feeds.paths import (
    MISSING,
    ArrayIndexStep,
    ArraySliceStep,
    FeedPath,
    FieldStep,
    PathAlternative,
    PathConstant,
    PathStart,
    PathStep,
)
from sessionlake.feeds.shapes import JsonShape
from sessionlake.feeds.values import FeedColumn
from sessionlake.protocol.columns import INTEGER_BITS

CACHED = 100_000
"""Most entries of each cache. The caches keep session ids, row ids and converted values, which recur often."""


MICROSECONDS = {"epoch_s": 1_000_000, "epoch_ms": 1000, "epoch_us": 1}
"""Microseconds in each unit of whole numbers that are kept as microseconds."""
YEAR_1, YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000


class UnusualMessageError(Exception):
    """Raised in generated code for a message that it cannot read. The slow reader `feeds.interpret` then reads it."""


class CodeGenerationNotPossibleError(Exception):
    """No code can be generated for the feed. The slow reader `feeds.interpret` then reads all its messages."""


def is_decimal_sent_as_text(column: FeedColumn) -> bool:
    """Returns True if the column is a decimal whose values are texts in messages (`from: text`)."""
    return column.sql.startswith("decimal") and column.how == "text"


def list_columns_that_mark_deletes(feed: Feed) -> set[str]:
    """Returns the names of the columns that the setting `delete` of rules compares with a value."""
    parts = [part for rule in feed.rules for part in rule.rows]
    return {column.name for part in parts if not isinstance(part.delete, bool) for column, _ in part.delete}


def build_plain_decimal_regex(sql_type: str) -> str:
    """Returns a regular expression for texts of decimals that fit a type such as `decimal(20,10)`.

    Digits, a minus sign and a point are allowed, but no exponent.
    """
    precision, scale = map(int, sql_type.removeprefix("decimal(").removesuffix(")").split(","))
    before_point, fraction = precision - scale, rf"(?:\.[0-9]{{1,{scale}}})?" if scale else ""
    return rf"-?[0-9]{{1,{before_point}}}{fraction}" if before_point else rf"-?0{fraction}"


def split_path_before_constant(path: FeedPath) -> tuple[FeedPath | None, PathConstant | None]:
    """Returns the alternatives of a path before its first constant, None if there are none; and the constant."""
    for number, one in enumerate(path.alternatives):
        if isinstance(one, PathConstant):
            return FeedPath(path.text, path.alternatives[:number]) if number else None, one
    return path, None


class ElementVariables(NamedTuple):
    """Where code reads a row or a part of a message.

    Attributes:
        element: Variable that has the element; None if the code reads the message itself.
        parent: Variable that has the element's parent; None if there is none.
        loops: Number of loops around the code.
    """

    element: str | None = None
    parent: str | None = None
    loops: int = 0


NO_ELEMENT = ElementVariables()
"""The variables of code that reads the message itself."""


class PythonCodeWriter:
    """Generates code line by line. Methods append lines and return the names of variables.

    Args:
        feed: The feed for which code is generated.
        message_shape: Shape of the decoded message. The writer adds all parts that the code reads.

    Attributes:
        names: Objects that the generated code uses, by their names in the code.
        record_fields: Names of the fields of Kafka records that the code uses.
    """

    def __init__(self, feed: Feed, message_shape: JsonShape) -> None:
        self._unavailable, self._key_format, self._key = feed.unavailable, feed.key_format, feed.key
        compared = list_columns_that_mark_deletes(feed) | {column.name for column in feed.key}
        self._in_microseconds = {
            column.name for column in feed.columns.values()
            if column.sql.startswith("timestamp") and column.how in MICROSECONDS and column.name not in compared
        }  # fmt: skip
        self.names: dict[str, Any] = {"Decimal": Decimal, "M": MISSING, "Unusual": UnusualMessageError}
        self.record_fields = {"value"}
        self._lines: list[str] = []
        self._blocks: list[dict[tuple[str, PathStep], str]] = [{}]
        self._shapes: dict[str, JsonShape] = {"d": message_shape}
        self._checked: set[str] = set()
        self._entries: dict[str, tuple[str, str]] = {}
        """For each element that `entries(…)` makes: the variables with the name and the value of its field."""
        self._temporary = 0

    @property
    def _block_depth(self) -> int:
        """Number of blocks around the next line. What an inner block found is forgotten at its end."""
        return len(self._blocks) - 1

    @_block_depth.setter
    def _block_depth(self, depth: int) -> None:
        del self._blocks[depth + 1 :]
        self._blocks += [{} for _ in range(depth + 1 - len(self._blocks))]

    def _add_code_line(self, code: str) -> None:
        self._lines.append("    " * self._block_depth + code)

    def _create_variable_name(self) -> str:
        """Returns a name that no other variable of the generated code has."""
        self._temporary += 1
        return f"v{self._temporary}"

    def _register_constant(self, value: Any) -> str:
        """Makes a value available to the generated code; returns the name that it has there."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def _add_conversion_code(self, column: FeedColumn, raw: str, *, is_required: bool) -> str:
        """Adds lines that convert a variable, unless its value is missing or null; returns the variable of the result.

        `is_required` is true if a message with a missing or null text or boolean is left to the slow reader. Of other
        types the caller checks this.
        """
        if self._unavailable:
            raw = self._add_check_for_not_sent_value(raw)
        name, base = self._create_variable_name(), column.sql
        null = "" if is_required else f" and {raw} is not M and {raw} is not None"
        if self._is_kept_as_text(column):
            self._add_code_line(f"if type({raw}) is not str{null}: raise Unusual")
            return raw
        if base == "boolean":
            self._add_code_line(f"if type({raw}) is not bool{null}: raise Unusual")
            return raw
        if base in INTEGER_BITS and column.how is None:
            top = 2 ** (INTEGER_BITS[base] - 1)
            self._add_code_line(f"if type({raw}) is int:")
            self._add_code_line(f"    if not {-top} <= {raw} < {top}: raise Unusual")
            self._add_code_line(f"elif {raw} is not M and {raw} is not None: raise Unusual")
            return raw
        if base == "double" and column.how is None:
            self._add_code_line(f"if type({raw}) is float or {raw} is M or {raw} is None: {name} = {raw}")
            self._add_code_line(f"else: {name} = {self._register_constant(column.convert)}({raw})")
            return name
        self._add_code_line(f"if {raw} is M or {raw} is None: {name} = {raw}")
        if column.name in self._in_microseconds:
            factor = MICROSECONDS[column.how or ""]
            self._add_code_line(f"elif type({raw}) is int and {YEAR_1 // factor} <= {raw} < {YEAR_10000 // factor}:")
            self._add_code_line(f"    {name} = {raw}{f' * {factor}' if factor > 1 else ''}")
        # A double may have lost digits of a time.
        if column.how is not None and column.sql.startswith(("timestamp", "array")):
            self._add_code_line(f"elif type({raw}) is float or type({raw}) is list and float in map(type, {raw}):")
            self._add_code_line("    raise Unusual")
        if column.how == "text":
            memory = self._register_constant({})
            self._add_code_line(f"elif type({raw}) is not str: raise Unusual")
            self._add_code_line("else:")
            self._add_code_line(f"    {name} = {memory}.get({raw})")
            self._add_code_line(f"    if {name} is None:")
            self._add_code_line(f"        if len({memory}) > {CACHED}: {memory}.clear()")
            self._add_code_line(f"        {name} = {memory}[{raw}] = {self._register_constant(column.convert)}({raw})")
        else:
            self._add_code_line(f"else: {name} = {self._register_constant(column.convert)}({raw})")
        return name

    def _add_check_for_not_sent_value(self, raw: str) -> str:
        """Adds lines that test the variable `raw` for values that mean "not sent".

        Returns:
            The variable that has the value, or `MISSING` for such a value.
        """
        name, wanted = self._create_variable_name(), self._register_constant(tuple(self._unavailable))
        self._add_code_line(f"{name} = {raw}")
        if all(type(one) is str for one in self._unavailable):
            self._add_code_line(f"if type({name}) is str and {name} in {wanted}: {name} = M")
        else:
            self._add_code_line(
                f"if {name} is None or type({name}) in (str, int, float, Decimal, bool) and {name} in {wanted}:"
            )
            self._add_code_line(f"    if None in {wanted} or {name} is not None: raise Unusual")
        self._add_code_line(f"if type({name}) is list and len({name}) == 1: raise Unusual")
        return name

    def _is_kept_as_text(self, column: FeedColumn) -> bool:
        """Returns True if values of the column are added to the lists as the texts that messages have."""
        return column.sql == "string" or is_decimal_sent_as_text(column)

    def _add_path_lookup_code(self, path: FeedPath, variables: ElementVariables, *, is_read: bool = True) -> str:
        """Adds lines that find the value at a path.

        Args:
            path: The path.
            variables: The element from which the path may start.
            is_read: False if only parts of the value are read, or whether there is one.

        Returns:
            The variable that has the value. It must not be changed.
        """
        found = ""
        for number, one in enumerate(path.alternatives):
            if isinstance(one, PathConstant) or one.entries:
                raise CodeGenerationNotPossibleError
            if number:
                self._add_code_line(f"if {found} is M:")
                self._block_depth += 1
            value = self._get_start_variable(one, variables)
            steps = one.steps[1:] if one.start is PathStart.HEADERS else one.steps
            if value in self._entries and not steps:
                raise CodeGenerationNotPossibleError
            for step in steps:
                value = self._add_path_step_code(value, step)
            if value in self._shapes:
                self._shapes[value].is_read |= is_read or len(path.alternatives) > 1
            if one.separator is not None:
                value = self._add_text_split_code(value, one.separator, one.part)
            if len(path.alternatives) == 1:
                return value
            found = found or self._create_variable_name()
            self._add_code_line(f"{found} = {value}")
            self._block_depth -= bool(number)
        return found

    def _get_start_variable(self, alternative: PathAlternative, variables: ElementVariables) -> str:  # noqa: PLR0911 - one return for each start
        """Returns the variable in which a path begins. May add lines that set it."""
        match alternative.start:
            case PathStart.MESSAGE:
                return "d"
            case PathStart.ELEMENT if variables.element is not None:
                return variables.element
            case PathStart.PARENT if variables.parent is not None:
                return variables.parent
            case PathStart.TOPIC | PathStart.PARTITION | PathStart.OFFSET | PathStart.TIMESTAMP:
                return self._use_kafka_record_field(alternative.start.value)
            case PathStart.KEY if self._key_format is not KafkaKeyFormat.TEXT:
                return "key_value"
            case PathStart.KEY:
                name = self._create_variable_name()
                key = self._use_kafka_record_field("key")
                self._add_code_line(f"{name} = M if {key} is None else {key}.decode()")
                return name
            case PathStart.HEADERS if isinstance(alternative.steps[0], FieldStep):
                name = self._create_variable_name()
                self._add_code_line(
                    f"{name} = {self._use_kafka_record_field('headers')}.get({alternative.steps[0].name!r}, M)"
                )
                self._add_code_line(f"{name} = {name} if {name} is M else ({name} or b'').decode()")
                return name
            case _:
                raise CodeGenerationNotPossibleError

    def _use_kafka_record_field(self, field_name: str) -> str:
        """Returns the variable that has a field of the Kafka record."""
        self.record_fields.add(field_name)
        return field_name

    def _add_path_step_code(self, variable: str, step: PathStep) -> str:
        """Adds a line that goes one step further in the message, unless a line before did; returns the variable."""
        for block in self._blocks:
            if (variable, step) in block:
                return block[variable, step]
        if variable in self._entries:
            names = dict(zip(("key", "value"), self._entries[variable], strict=True))
            return names.get(step.name, "M") if isinstance(step, FieldStep) else "M"
        name = self._blocks[-1][variable, step] = self._create_variable_name()
        shape = self._shapes.get(variable) or JsonShape()
        match step:
            case FieldStep(field):
                self._shapes[name] = shape.get_or_add_field(field)
                found, is_there = f"{variable}.get({field!r}, M)", f"type({variable}) is dict"
            case ArrayIndexStep(number):
                self._shapes[name] = shape.get_or_add_element(number)
                has = f"len({variable}) > {number}" if number >= 0 else f"len({variable}) >= {-number}"
                found, is_there = f"{variable}[{number}]", f"type({variable}) is list and {has}"
            case ArraySliceStep(first, end):
                shape.is_read = True
                found = f"{variable}[{'' if first is None else first}:{'' if end is None else end}]"
                is_there = f"type({variable}) is list"
            case _:
                raise CodeGenerationNotPossibleError
        is_checked = variable in self._checked and (shape.kind is not None or isinstance(step, FieldStep))
        if shape.kind is not None and isinstance(step, FieldStep | ArrayIndexStep):
            found = f"{variable}.{shape.get_attribute_name(step[0])}"
            is_there = f"type({variable}) is {self._register_type(shape.kind)}"
        self._add_code_line(f"{name} = {found}" if is_checked else f"{name} = {found} if {is_there} else M")
        return name

    def _register_type(self, python_type: type) -> str:
        """Returns the name of a type in the code."""
        return next(
            (name for name, value in self.names.items() if value is python_type), None
        ) or self._register_constant(python_type)

    def _add_text_split_code(self, variable: str, separator: str, part_index: int) -> str:
        """Adds lines that split the text in a variable and choose a part. Returns the name of the part's variable.

        The part is missing if the text has too few parts, or the variable has no text.

        Args:
            variable: Name of the variable with the text.
            separator: Text between two parts.
            part_index: Index of the part, from 0; a negative index counts from the end.
        """
        name = self._create_variable_name()
        self._add_code_line(f"{name} = {variable}.split({separator!r}) if type({variable}) is str else []")
        has = f"len({name}) > {part_index}" if part_index >= 0 else f"len({name}) >= {-part_index}"
        self._add_code_line(f"{name} = {name}[{part_index}] if {has} else M")
        return name
