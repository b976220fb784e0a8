"""Generates the code that reads rows: the inner part of the function that `feeds.writer` generates for a feed."""

from __future__ import annotations

import re
from typing import Any

from sessionlake.feeds.caches import RowIds
from sessionlake.feeds.code import (
    At,
    CodeWriter,
    NoCodeError,
    build_regex_of_plain_decimals,
    cut_at_constant,
    is_decimal_text,
)
from sessionlake.feeds.feed import Feed, RowMapping
from sessionlake.feeds.parsers import format_exact_json
from sessionlake.feeds.paths import EachElementStep, FeedPath, FieldStep, PathAlternative, PathStart
from sessionlake.feeds.shapes import Shape
from sessionlake.feeds.values import FeedColumn, convert_constant, format_json
from sessionlake.protocol.columns import INTEGER_BITS
from sessionlake.protocol.message import MAX_ID_BYTES
from sessionlake.protocol.payload import PayloadFormat

_MOST_LOOPS = 15
"""Python allows 20 nested blocks, and the function has three around these loops."""


class RowWriter(CodeWriter):
    """Generates code that adds the rows of a message to `EventLists`.

    Args:
        feed: The feed.
        message: Shape of the decoded message.
        rescues: True if the code stores undeclared fields of rows in `_rescued`. False if it leaves messages that have
            such fields to another reader.

    Attributes:
        row_ids: The caches of row ids in the code.
    """

    def __init__(self, feed: Feed, message: Shape, *, rescues: bool) -> None:
        super().__init__(feed, message)
        self._feed, self._rescues = feed, rescues
        self._added = set[str]()
        self.row_ids: list[RowIds] = []

    def _add_rows(self, row_rule: RowMapping, at: At) -> None:
        """Adds lines that read rows by one entry of a rule's `rows`, from the message or from a part of it."""
        if row_rule.each and row_rule.source is not None:
            depth = self._depth
            self._add_row(row_rule, self._add_loop_over_elements(row_rule.source, at))
            self._depth = depth
        elif row_rule.source is not None:
            element = self._add_lookup(row_rule.source, at, is_read=False)
            self._add_line(f"if {element} is M or {element} is None: raise Unusual")
            self._add_row(row_rule, At(element, "d"))
        else:
            self._add_row(row_rule, At("d") if at.element is None else at)

    def _add_loop_over_elements(self, source: FeedPath, at: At) -> At:
        """Opens a loop over the elements at a path, and returns the variables of the element. The caller closes it."""
        if len(source.alternatives) != 1 or not isinstance(one := source.alternatives[0], PathAlternative):
            raise NoCodeError
        loops = at.loops + one.entries + sum(isinstance(step, EachElementStep) for step in one.steps)
        if one.start is PathStart.HEADERS or loops > _MOST_LOOPS:
            raise NoCodeError
        value = self._name_start(one, at)
        parent = before = value
        for step in one.steps:
            if isinstance(step, EachElementStep) and not one.entries:
                value = self._add_loop(value)
                continue
            before, parent = value, value if isinstance(step, FieldStep) else parent
            value = self._add_step(value, step)
        if one.entries:
            return At(self._add_loop_over_entries(value), before, loops)
        if not isinstance(one.steps[-1], EachElementStep):
            self._add_line(f"if {value} is not M and {value} is not None:")
            self._depth += 1
        return At(value, parent, loops)

    def _add_loop(self, value: str) -> str:
        """Opens a loop over the array in a variable, and returns the variable of its element."""
        self._add_type_check(value, "list")
        item = self._create_variable_name()
        self._shapes[item] = (self._shapes.get(value) or Shape()).find_items()
        self._add_line(f"for {item} in {value}:")
        self._depth += 1
        return item

    def _add_loop_over_entries(self, value: str) -> str:
        """Opens a loop over the fields of the object in a variable, and returns the variable of its element."""
        if value in self._shapes:
            self._shapes[value].is_read = True
        self._add_type_check(value, "dict")
        element, name, inner = (self._create_variable_name() for _ in range(3))
        self._entries[element] = name, inner
        self._add_line(f"for {name}, {inner} in {value}.items():")
        self._depth += 1
        return element

    def _add_type_check(self, value: str, kind: str) -> None:
        """Opens a block for a value of a type. It leaves a message with another value to the slow reader."""
        self._add_line(f"if type({value}) is not {kind}:")
        self._add_line(f"    if {value} is not M and {value} is not None: raise Unusual")
        self._add_line("else:")
        self._depth += 1

    def _add_row(self, row_rule: RowMapping, at: At) -> None:
        """Adds lines that add a row, read from an element, to the lists of rows."""
        feed, element = self._feed, at.element or "d"
        if element in self._entries and (row_rule.by_name or row_rule.rescue):
            raise NoCodeError
        places = {name: number for number, name in enumerate(feed.columns)}
        raw = self._add_raw_values(row_rule, element, at)
        key = [raw[column.name][1] for column in feed.key]
        unknown = [one for column, one in zip(feed.key, key, strict=True) if not self._is_text(column)]
        for one in unknown:
            self._add_line(f"if {one} is M or {one} is None: raise Unusual")
        self._add_row_id(feed.key, key)
        deleted = self._write_deleted(row_rule, raw)
        if deleted != "False":
            self._add_decimal_check(deleted, [one for one in raw.values() if one[0] not in feed.key])
        added = {places[name]: value for name, (_, value) in raw.items()}
        for number, name in enumerate(feed.columns):
            value = added.get(number, "M")
            if row_rule.absent_is_null and number in added:
                value = f"None if {value} is M else {value}"
            if deleted != "False" and feed.columns[name] not in feed.key and number in added:
                value = f"M if deleted else ({value})" if deleted != "True" else "M"
            self._add_line(f"add_c{number}({value})")
        self._add_line("add_row_id(row_id)")
        if self._rescues:
            self._add_line(f"add_rescued({self._write_rescued(row_rule, element, deleted)})")
        if "deletes" in self._added:
            self._add_line(f"add_deletes({deleted})")
        if "expect" in self._added:
            self._add_line(f"add_expect({None if row_rule.expect is None else row_rule.expect.value!r})")

    def _add_raw_values(self, row_rule: RowMapping, element: str, at: At) -> dict[str, tuple[FeedColumn, str]]:
        """Adds lines that read a row's columns; returns each column with the variable that has its value."""
        shape, was_checked = self._shapes.get(element) or Shape(), element in self._checked
        if (shape.kind is not None or row_rule.by_name) and not was_checked:
            kind = "dict" if shape.kind is None else self._name_type(shape.kind)
            self._add_line(f"if type({element}) is not {kind}: raise Unusual")
            self._checked.add(element)
        raw = {column.name: (column, self._add_value(column, path, at)) for column, path in row_rule.values}
        for column in row_rule.by_name:
            value = self._add_step(element, FieldStep(column.name))
            raw[column.name] = (column, self._add_conversion(column, value, is_required=column in self._feed.key))
        shape.is_read |= row_rule.rescue and self._rescues
        shape.refuses.add(row_rule.rescue)
        if row_rule.rescue and not self._rescues:
            self._add_undeclared_check(element, shape)
        if not was_checked:
            self._checked.discard(element)
        return raw

    def _add_decimal_check(self, deleted: str, values: list[tuple[FeedColumn, str]]) -> None:
        """Adds a check of a deleted row's decimals, which are not added to the lists unless they are in the key."""
        for column, value in values:
            if is_decimal_text(column):
                is_plain = self._name_constant(re.compile(build_regex_of_plain_decimals(column.sql)).fullmatch)
                self._add_line(f"if {deleted} and type({value}) is str and not {is_plain}({value}): raise Unusual")

    def _add_undeclared_check(self, element: str, shape: Shape) -> None:
        """Adds a check that leaves rows with undeclared fields to another reader, which stores these fields."""
        columns = self._feed.columns
        if shape.kind is None:
            for name in columns:
                shape.find_field(name)
            self._add_line(f"if not {element}.keys() <= {self._name_constant(frozenset(columns))}: raise Unusual")
        for name in shape.fields if shape.kind is not None else ():
            if name not in columns:
                self._add_line(f"if {element}.{shape.get_attribute_name(name)} is not M: raise Unusual")

    def _write_rescued(self, row_rule: RowMapping, element: str, deleted: str) -> str:
        """Returns code for the undeclared fields of a row, as JSON text or None."""
        if not row_rule.rescue or deleted == "True":
            return "None"
        declared, rescue = self._name_constant(frozenset(self._feed.columns)), self._name_constant(self._rescue)
        none = f"type({element}) is not dict or {element}.keys() <= {declared}"
        return f"None if {none}{' or deleted' if deleted == 'deleted' else ''} else {rescue}({element})"

    def _rescue(self, element: dict[str, Any]) -> str:
        """Returns the undeclared fields of a row as JSON text with sorted names."""
        extra = {name: value for name, value in element.items() if name not in self._feed.columns}
        return (
            format_exact_json(extra) if self._feed.format is PayloadFormat.JSON else format_json(extra, sort_names=True)
        )

    def _write_deleted(self, row_rule: RowMapping, raw: dict[str, tuple[FeedColumn, str]]) -> str:
        """Returns code for "the row is deleted": `True`, `False`, or the variable `deleted`, which it sets."""
        if isinstance(row_rule.delete, bool):
            return str(row_rule.delete)
        tests = []
        for column, wanted in row_rule.delete:
            value = raw[column.name][1]
            if wanted is None:
                tests.append(f"({value} is None or {value} is M)" if row_rule.absent_is_null else f"{value} is None")
            else:
                tests.append(self._write_equals(column, value, wanted))
        self._add_line(f"deleted = {' and '.join(tests)}")
        return "deleted"

    def _write_equals(self, column: FeedColumn, value: str, wanted: Any) -> str:
        """Returns code for "the variable `value` equals `wanted`"."""
        test = f"{value} == {self._name_constant(wanted)}"
        if not is_decimal_text(column):
            return test
        # A text that is kept has only digits, a point and a sign.
        as_text = f"{self._name_constant(column.convert)}({value}) == {self._name_constant(wanted)}"
        as_text = f"not {value}.strip('-0.')" if wanted == 0 else as_text
        return f"(type({value}) is str and {as_text})"

    def _add_row_id(self, key: tuple[FeedColumn, ...], values: list[str]) -> None:
        """Adds lines that set the variable `row_id` from the variables that have the values of the key."""
        if len(key) == 1 and key[0].sql == "string":
            self._add_line(f"row_id = {values[0]}")
            self._add_line(f"if not 0 < len(row_id) <= {MAX_ID_BYTES // 4}: raise Unusual")
            return
        if len(key) == 1 and key[0].sql in INTEGER_BITS:
            self._add_line(f"row_id = f'[{{{values[0]}}}]'")
            return
        self.row_ids.append(RowIds(key))
        cache = self._name_constant(self.row_ids[-1])
        self._add_line(f"key = ({''.join(f'{value}, ' for value in values)})")
        self._add_line(f"row_id = {cache}.get(key)")
        self._add_line(f"if row_id is None: row_id = {cache}.compute(key)")

    def _add_value(self, column: FeedColumn, path: FeedPath, at: At) -> str:
        """Adds lines to the generated code that read a column's value, and returns the variable that gets it.

        Args:
            column: The column.
            path: Where the value is in the element. It may end with a constant, for elements without the value.
            at: The element that the code reads at this point.
        """
        found, constant = cut_at_constant(path)
        default = None if constant is None else self._name_constant(convert_constant(constant, column))
        if found is None:
            return str(default)
        value = self._add_lookup(found, at)
        converted = self._add_conversion(column, value, is_required=default is None and column in self._feed.key)
        if default is None:
            return converted
        name = self._create_variable_name()
        self._add_line(f"{name} = {default} if {value} is M else {converted}")
        if column in self._feed.key:
            self._add_line(f"if {name} is M or {name} is None: raise Unusual")
        return name
