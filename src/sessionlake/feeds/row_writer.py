"""Generates the code that reads rows: the inner part of the function that `feeds.writer` generates for a feed."""

from __future__ import annotations

import re
from typing import Any

from sessionlake.feeds.caches import RowIdCache
from sessionlake.feeds.code import (
    CodeGenerationNotPossibleError,
    ElementVariables,
    PythonCodeWriter,
    build_plain_decimal_regex,
    is_decimal_sent_as_text,
    split_path_before_constant,
)
from sessionlake.feeds.feed import Feed, RowMapping
from sessionlake.feeds.parsers import format_json_with_sorted_names
from sessionlake.feeds.paths import EachElementStep, FeedPath, FieldStep, PathAlternative, PathStart
from sessionlake.feeds.shapes import JsonShape
from sessionlake.feeds.values import FeedColumn, convert_constant, format_json
from sessionlake.protocol.columns import INTEGER_BITS
from sessionlake.protocol.message import MAX_ID_BYTES
from sessionlake.protocol.payload import PayloadFormat

_MOST_LOOPS = 15
"""Python allows 20 nested blocks, and the function has three around these loops."""


class RowCodeWriter(PythonCodeWriter):
    """Generates code that adds the rows of a message to `ColumnarEvents`.

    Args:
        feed: The feed.
        message_shape: Shape of the decoded message.
        stores_undeclared: True if the code stores undeclared fields of rows in `_rescued`. False if it leaves messages
            that have such fields to another reader.

    Attributes:
        row_ids: The caches of row ids in the code.
    """

    def __init__(self, feed: Feed, message_shape: JsonShape, *, stores_undeclared: bool) -> None:
        super().__init__(feed, message_shape)
        self._feed, self._rescues = feed, stores_undeclared
        self._added = set[str]()
        self.row_ids: list[RowIdCache] = []

    def _add_row_mapping_code(self, row_mapping: RowMapping, variables: ElementVariables) -> None:
        """Adds lines that read rows by one entry of a rule's `rows`, from the message or from a part of it."""
        if row_mapping.each and row_mapping.source is not None:
            depth = self._block_depth
            self._add_row_code(row_mapping, self._open_loop_over_path_elements(row_mapping.source, variables))
            self._block_depth = depth
        elif row_mapping.source is not None:
            element = self._add_path_lookup_code(row_mapping.source, variables, is_read=False)
            self._add_code_line(f"if {element} is M or {element} is None: raise Unusual")
            self._add_row_code(row_mapping, ElementVariables(element, "d"))
        else:
            self._add_row_code(row_mapping, ElementVariables("d") if variables.element is None else variables)

    def _open_loop_over_path_elements(self, source: FeedPath, variables: ElementVariables) -> ElementVariables:
        """Opens a loop over the elements at a path, and returns the variables of the element. The caller closes it."""
        if len(source.alternatives) != 1 or not isinstance(one := source.alternatives[0], PathAlternative):
            raise CodeGenerationNotPossibleError
        loops = variables.loops + one.entries + sum(isinstance(step, EachElementStep) for step in one.steps)
        if one.start is PathStart.HEADERS or loops > _MOST_LOOPS:
            raise CodeGenerationNotPossibleError
        value = self._get_start_variable(one, variables)
        parent = before = value
        for step in one.steps:
            if isinstance(step, EachElementStep) and not one.entries:
                value = self._open_loop_over_array(value)
                continue
            before, parent = value, value if isinstance(step, FieldStep) else parent
            value = self._add_path_step_code(value, step)
        if one.entries:
            return ElementVariables(self._open_loop_over_object_fields(value), before, loops)
        if not isinstance(one.steps[-1], EachElementStep):
            self._add_code_line(f"if {value} is not M and {value} is not None:")
            self._block_depth += 1
        return ElementVariables(value, parent, loops)

    def _open_loop_over_array(self, array_variable: str) -> str:
        """Opens a loop over the array in a variable, and returns the variable of its element."""
        self._open_type_check(array_variable, "list")
        item = self._create_variable_name()
        self._shapes[item] = (self._shapes.get(array_variable) or JsonShape()).get_or_add_items()
        self._add_code_line(f"for {item} in {array_variable}:")
        self._block_depth += 1
        return item

    def _open_loop_over_object_fields(self, object_variable: str) -> str:
        """Opens a loop over the fields of the object in a variable, and returns the variable of its element."""
        if object_variable in self._shapes:
            self._shapes[object_variable].is_read = True
        self._open_type_check(object_variable, "dict")
        element, name, inner = (self._create_variable_name() for _ in range(3))
        self._entries[element] = name, inner
        self._add_code_line(f"for {name}, {inner} in {object_variable}.items():")
        self._block_depth += 1
        return element

    def _open_type_check(self, variable: str, type_name: str) -> None:
        """Opens a block for a value of a type. It leaves a message with another value to the slow reader."""
        self._add_code_line(f"if type({variable}) is not {type_name}:")
        self._add_code_line(f"    if {variable} is not M and {variable} is not None: raise Unusual")
        self._add_code_line("else:")
        self._block_depth += 1

    def _add_row_code(self, row_mapping: RowMapping, variables: ElementVariables) -> None:
        """Adds lines that add a row, read from an element, to the lists of rows."""
        feed, element = self._feed, variables.element or "d"
        if element in self._entries and (row_mapping.by_name or row_mapping.rescue):
            raise CodeGenerationNotPossibleError
        places = {name: number for number, name in enumerate(feed.columns)}
        raw = self._add_column_reading_code(row_mapping, element, variables)
        key = [raw[column.name][1] for column in feed.key]
        unknown = [one for column, one in zip(feed.key, key, strict=True) if not self._is_kept_as_text(column)]
        for one in unknown:
            self._add_code_line(f"if {one} is M or {one} is None: raise Unusual")
        self._add_row_id_code(feed.key, key)
        deleted = self._write_is_deleted_expression(row_mapping, raw)
        if deleted != "False":
            self._add_check_of_deleted_decimals(deleted, [one for one in raw.values() if one[0] not in feed.key])
        added = {places[name]: value for name, (_, value) in raw.items()}
        for number, name in enumerate(feed.columns):
            value = added.get(number, "M")
            if row_mapping.absent_is_null and number in added:
                value = f"None if {value} is M else {value}"
            if deleted != "False" and feed.columns[name] not in feed.key and number in added:
                value = f"M if deleted else ({value})" if deleted != "True" else "M"
            self._add_code_line(f"add_c{number}({value})")
        self._add_code_line("add_row_id(row_id)")
        if self._rescues:
            self._add_code_line(
                f"add_rescued({self._write_undeclared_fields_expression(row_mapping, element, deleted)})"
            )
        if "deletes" in self._added:
            self._add_code_line(f"add_deletes({deleted})")
        if "expect" in self._added:
            self._add_code_line(f"add_expect({None if row_mapping.expect is None else row_mapping.expect.value!r})")

    def _add_column_reading_code(
        self, row_mapping: RowMapping, element: str, variables: ElementVariables
    ) -> dict[str, tuple[FeedColumn, str]]:
        """Adds lines that read a row's columns; returns each column with the variable that has its value."""
        shape, was_checked = self._shapes.get(element) or JsonShape(), element in self._checked
        if (shape.kind is not None or row_mapping.by_name) and not was_checked:
            kind = "dict" if shape.kind is None else self._register_type(shape.kind)
            self._add_code_line(f"if type({element}) is not {kind}: raise Unusual")
            self._checked.add(element)
        raw = {
            column.name: (column, self._add_column_value_code(column, path, variables))
            for column, path in row_mapping.values
        }
        for column in row_mapping.by_name:
            value = self._add_path_step_code(element, FieldStep(column.name))
            raw[column.name] = (column, self._add_conversion_code(column, value, is_required=column in self._feed.key))
        shape.is_read |= row_mapping.rescue and self._rescues
        shape.refuses.add(row_mapping.rescue)
        if row_mapping.rescue and not self._rescues:
            self._add_check_for_undeclared_fields(element, shape)
        if not was_checked:
            self._checked.discard(element)
        return raw

    def _add_check_of_deleted_decimals(self, deleted: str, values: list[tuple[FeedColumn, str]]) -> None:
        """Adds a check of a deleted row's decimals, which are not added to the lists unless they are in the key."""
        for column, value in values:
            if is_decimal_sent_as_text(column):
                is_plain = self._register_constant(re.compile(build_plain_decimal_regex(column.sql)).fullmatch)
                self._add_code_line(f"if {deleted} and type({value}) is str and not {is_plain}({value}): raise Unusual")

    def _add_check_for_undeclared_fields(self, element: str, shape: JsonShape) -> None:
        """Adds a check that leaves rows with undeclared fields to another reader, which stores these fields."""
        columns = self._feed.columns
        if shape.kind is None:
            for name in columns:
                shape.get_or_add_field(name)
            self._add_code_line(
                f"if not {element}.keys() <= {self._register_constant(frozenset(columns))}: raise Unusual"
            )
        for name in shape.fields if shape.kind is not None else ():
            if name not in columns:
                self._add_code_line(f"if {element}.{shape.get_attribute_name(name)} is not M: raise Unusual")

    def _write_undeclared_fields_expression(self, row_mapping: RowMapping, element: str, deleted: str) -> str:
        """Returns code for the undeclared fields of a row, as JSON text or None."""
        if not row_mapping.rescue or deleted == "True":
            return "None"
        declared, rescue = (
            self._register_constant(frozenset(self._feed.columns)),
            self._register_constant(self._format_undeclared_fields),
        )
        none = f"type({element}) is not dict or {element}.keys() <= {declared}"
        return f"None if {none}{' or deleted' if deleted == 'deleted' else ''} else {rescue}({element})"

    def _format_undeclared_fields(self, element: dict[str, Any]) -> str:
        """Returns the undeclared fields of a row as JSON text with sorted names."""
        extra = {name: value for name, value in element.items() if name not in self._feed.columns}
        return (
            format_json_with_sorted_names(extra)
            if self._feed.format is PayloadFormat.JSON
            else format_json(extra, sort_names=True)
        )

    def _write_is_deleted_expression(self, row_mapping: RowMapping, raw: dict[str, tuple[FeedColumn, str]]) -> str:
        """Returns code for "the row is deleted": `True`, `False`, or the variable `deleted`, which it sets."""
        if isinstance(row_mapping.delete, bool):
            return str(row_mapping.delete)
        tests = []
        for column, wanted in row_mapping.delete:
            value = raw[column.name][1]
            if wanted is None:
                tests.append(f"({value} is None or {value} is M)" if row_mapping.absent_is_null else f"{value} is None")
            else:
                tests.append(self._write_equality_expression(column, value, wanted))
        self._add_code_line(f"deleted = {' and '.join(tests)}")
        return "deleted"

    def _write_equality_expression(self, column: FeedColumn, variable: str, wanted: Any) -> str:
        """Returns code for "the variable `variable` equals `wanted`"."""
        test = f"{variable} == {self._register_constant(wanted)}"
        if not is_decimal_sent_as_text(column):
            return test
        # A text that is kept has only digits, a point and a sign.
        as_text = f"{self._register_constant(column.convert)}({variable}) == {self._register_constant(wanted)}"
        as_text = f"not {variable}.strip('-0.')" if wanted == 0 else as_text
        return f"(type({variable}) is str and {as_text})"

    def _add_row_id_code(self, key: tuple[FeedColumn, ...], values: list[str]) -> None:
        """Adds lines that set the variable `row_id` from the variables that have the values of the key."""
        if len(key) == 1 and key[0].sql == "string":
            self._add_code_line(f"row_id = {values[0]}")
            self._add_code_line(f"if not 0 < len(row_id) <= {MAX_ID_BYTES // 4}: raise Unusual")
            return
        if len(key) == 1 and key[0].sql in INTEGER_BITS:
            self._add_code_line(f"row_id = f'[{{{values[0]}}}]'")
            return
        self.row_ids.append(RowIdCache(key))
        cache = self._register_constant(self.row_ids[-1])
        self._add_code_line(f"key = ({''.join(f'{value}, ' for value in values)})")
        self._add_code_line(f"row_id = {cache}.get(key)")
        self._add_code_line(f"if row_id is None: row_id = {cache}.compute_and_cache_row_id(key)")

    def _add_column_value_code(self, column: FeedColumn, path: FeedPath, variables: ElementVariables) -> str:
        """Adds lines to the generated code that read a column's value, and returns the variable that gets it.

        Args:
            column: The column.
            path: Where the value is in the element. It may end with a constant, for elements without the value.
            variables: The element that the code reads at this point.
        """
        found, constant = split_path_before_constant(path)
        default = None if constant is None else self._register_constant(convert_constant(constant, column))
        if found is None:
            return str(default)
        value = self._add_path_lookup_code(found, variables)
        converted = self._add_conversion_code(column, value, is_required=default is None and column in self._feed.key)
        if default is None:
            return converted
        name = self._create_variable_name()
        self._add_code_line(f"{name} = {default} if {value} is M else {converted}")
        if column in self._feed.key:
            self._add_code_line(f"if {name} is M or {name} is None: raise Unusual")
        return name
