"""Generates the Python code that reads the messages of one feed: a function with one loop.

The function decodes a value, tries the rules in order, and appends to `EventLists`. Texts of the configuration enter
the code only through `repr` or as values, so they cannot become code.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sessionlake.feeds.caches import RowIds, SessionIds
from sessionlake.feeds.code import CodeWriter, NoCodeError, is_decimal_text, plain_decimal
from sessionlake.feeds.feed import Body, Condition, Feed, KeyFormat, Kind, Order, Ordering, Presence, Rows, Rule, Time
from sessionlake.feeds.parsers import MOST_DIGITS, create_parsers, has_long_number
from sessionlake.feeds.paths import Access, Constant, Each, Field, Path, Start
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.shapes import Shape
from sessionlake.feeds.times import milliseconds_of
from sessionlake.feeds.values import FeedColumn, typed_constant
from sessionlake.protocol.columns import INTEGER_BITS
from sessionlake.protocol.jsontext import is_too_deep
from sessionlake.protocol.message import INT64_MAX, MAX_DEPTH, MAX_ID_BYTES
from sessionlake.protocol.payload import PayloadFormat

_SAFE_MS: Final = 2**53


class FeedWriter(CodeWriter):
    """Generates the function of one feed, line by line. Methods append lines and return the names of variables.

    Args:
        feed: The feed.
        payload: Reads Avro and Protobuf; required if `feed.needs_payload`.
        message: Shape of the decoded message.
        kind: The type that messages are decoded to: the type of the shape, or `Any`.

    Attributes:
        names: Objects that the generated code uses, by their names in the code.
        row_ids: The caches of row ids in the code.
    """

    def __init__(self, feed: Feed, payload: PayloadReader | None, message: Shape, kind: Any = Any) -> None:
        if feed.needs_digits:
            raise NoCodeError
        super().__init__(feed, message)
        self._feed = feed
        self.row_ids: list[RowIds] = []
        loads, load_key = create_parsers(feed, payload, kind)
        self.names |= {
            "has_long_number": has_long_number, "is_too_deep": is_too_deep,
            "loads": loads, "load_key": load_key, "milliseconds_of": milliseconds_of,
        }  # fmt: skip

    def function(self) -> str:
        """Returns the code of `read_all(records, max_bytes, out, unusual, rules)`.

        Until all messages are read, `out.rows` has the number of rows up to each event, and times may be ISO texts.
        The function adds the number of the rule of each event to `rules`, and the indices of messages for the
        interpreter to `unusual`. Lists with the same value for all events or rows stay empty.
        """
        feed = self._feed
        parts = [part for rule in feed.rules for part in rule.rows]
        of_event = ["message", "session", "ts", "seq", "rows"]
        of_event += ["after"] * any(order.other or order.kind is Ordering.STEP for order in self._list_orders())
        of_event += ["sent"] * (feed.check is not None and feed.check.sent is not None)
        of_row = ["row_id", *["deletes"] * any(part.delete for part in parts)]
        of_row += ["expect"] * any(part.expect for part in parts)
        self._added = {*of_event, *of_row}
        self._depth = 3
        self._add_message()
        body, self._lines, self._depth = self._lines, [], 0
        self._add_line("def read_all(records, max_bytes, out, unusual, rules):")
        self._depth = 1
        for name in (*of_event, *of_row):
            self._add_line(f"add_{name} = out.{name}.append")
        for number in range(len(feed.columns)):
            self._add_line(f"add_c{number} = out.values[{number}].append")
        self._add_line("add_rule, row_id_list, ends = rules.append, out.row_id, out.rows")
        self._add_line(f"per_row = [{', '.join(f'out.{name}' for name in of_row)}, *out.values]")
        # A value with more levels than allowed has as many closing brackets, or it is no JSON.
        self._add_line(f"unchecked = min(max_bytes, {2 * MAX_DEPTH})")
        fields = sorted(self.record_fields)
        columns = ", ".join(f"records.{name}" for name in fields)
        self._add_line(f"for number, {', '.join(fields)} in zip(range(len(records.value)), {columns}):")
        self._depth = 2
        self._add_line("try:")
        self._lines += body
        self._add_line("except Exception:")
        self._depth = 3
        self._add_line("for one in per_row: del one[ends[-1] if ends else 0 :]")
        self._add_line("unusual.append(number)")
        return "\n".join(self._lines) + "\n"

    def _add_message(self) -> None:
        """Adds the lines that read one message."""
        if self._feed.format is PayloadFormat.JSON:
            self._add_line("if len(value) > unchecked:")
            self._add_line("    if len(value) > max_bytes: raise Unusual")
            deep = f'value.count(b"[") + value.count(b"{{") > {MAX_DEPTH} and is_too_deep(value.decode())'
            self._add_line(f"    if {deep}: raise Unusual")
            self._add_line(f"    if len(value) > {MOST_DIGITS} and has_long_number(value): raise Unusual")
            self._add_line("if not value.isascii(): value.decode()")
        else:
            self._add_line("if value is None or len(value) > max_bytes: raise Unusual")
        self._add_line("d = loads(value)")
        kind, bodies = self._shapes["d"].kind, {body for rule in self._feed.rules for body in _list_bodies(rule)}
        if kind is not None and bodies <= {Body.TOMBSTONE, Body.OBJECT}:
            self._add_line(f"if type(d) is not {self._name_type(kind)}: raise Unusual")
            self._checked.add("d")
        if self._feed.key_format is not KeyFormat.TEXT:
            key = self._name_record_field("key")
            self._add_line(f"key_value = M if {key} is None else load_key({key})")
        self._add_rules()

    # -- rules

    def _add_rules(self) -> None:
        """Adds a block for each rule, in a loop. The rule that has read the message leaves the loop by `break`."""
        self._add_line("while True:")
        self._depth += 1
        for rule in self._feed.rules:
            self._add_rule(rule)
        self._add_line("raise Unusual")
        self._depth -= 1

    def _add_rule(self, rule: Rule) -> None:
        conditions = [self._write_condition(one) for one in rule.when]
        self._add_line(f"if {' and '.join(conditions) or 'True'}:")
        self._depth += 1
        order = rule.order or self._feed.order
        if rule.split is not None or rule.scope or order.chain is not None or order.modulo is not None:
            self._add_line("raise Unusual")
        elif rule.kind is Kind.IGNORE:
            self._add_line("break")
        else:
            self._add_event(rule, order)
            self._add_line("break")
        self._depth -= 1

    def _write_condition(self, condition: Condition) -> str:
        if condition.path is None:
            wanted = condition.wanted if isinstance(condition.wanted, tuple) else ()
            types = {Body.ARRAY: ["list"], Body.OBJECT: ["dict"], Body.TEXT: ["str"], Body.TOMBSTONE: []}
            if (kind := self._shapes["d"].kind) is not None:
                types[Body.OBJECT if self._shapes["d"].fields else Body.ARRAY].append(self._name_type(kind))
            return f"type(d) in ({''.join(f'{name}, ' for one in wanted for name in types[one])})"
        value = self._add_lookup(condition.path, element=None, is_read=not isinstance(condition.wanted, Presence))
        if isinstance(condition.wanted, Presence):
            return f"{value} is {'' if condition.wanted is Presence.ABSENT else 'not '}M"
        tests = []
        for one in condition.wanted:
            if one is None:
                tests.append(f"{value} is None")
            elif isinstance(one, bool | str):
                tests.append(f"{value} is {one}" if isinstance(one, bool) else f"{value} == {str(one)!r}")
            else:
                tests.append(
                    f"({value} == {self._name_constant(one)} and {value} is not True and {value} is not False)"
                )
        return f"({' or '.join(tests)})"

    def _add_event(self, rule: Rule, order: Order) -> None:
        feed = self._feed
        if feed.check is not None and feed.check.sent is not None:
            found = self._add_lookup(feed.check.sent, element=None)
            self._add_line(f"sent = None if {found} is M else {found}")
        self._add_session(rule.session or feed.session)
        self._add_time(rule.time or feed.time)
        seq, after = self._add_interval(order)
        for part in rule.rows:
            self._add_part(part)
        if feed.refuse_repeats:
            self._add_line("own = row_id_list[ends[-1] if ends else 0 :]")
            self._add_line("if len(set(own)) < len(own): raise Unusual")
        self._add_line("add_message(number); add_session(session); add_ts(ts)")
        self._add_line(f"add_seq({seq}); add_rule({rule.number})")
        if "after" in self._added:
            self._add_line(f"add_after({'None' if rule.restart else after})")
        if "sent" in self._added:
            self._add_line("add_sent(sent)")
        self._add_line("add_rows(len(row_id_list))")

    def _add_session(self, paths: tuple[Path, ...]) -> None:
        parts = [self._add_lookup(path, element=None) for path in paths]
        numbers = {Start.PARTITION, Start.OFFSET, Start.TIMESTAMP}
        for number, (path, part) in enumerate(zip(paths, parts, strict=True)):
            if not all(isinstance(one, Access) and one.start in numbers for one in path.alternatives):
                self._add_line(f"if type({part}) is not str: raise Unusual")
            elif len(paths) == 1:
                parts[number] = f"str({part})"
        cache = self._name_constant(SessionIds())
        key = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        self._add_line(f"session = {cache}.get({key})")
        self._add_line(f"if session is None: session = {cache}.compute({key})")

    def _add_time(self, time: Time) -> None:
        if time.path is None:
            self._add_line(f"ts = {self._name_record_field('timestamp')}")
            return
        value = self._add_lookup(time.path, element=None)
        if time.or_kafka:
            self._add_line(f"if {value} is M or {value} is None: ts = {self._name_record_field('timestamp')}")
            self._add_line("else:")
        else:
            self._add_line("if True:")
        self._depth += 1
        if time.how in {"epoch_ms", "epoch_us"} and not time.from_text:
            self._add_line(f"if type({value}) is not int: raise Unusual")
            self._add_line(f"ts = {value}{'' if time.how == 'epoch_ms' else ' // 1000'}")
        elif time.how == "iso":
            self._add_line(f"if type({value}) is not str: raise Unusual")
            self._add_line(f"ts = {value}")
        else:
            self._add_line(f"ts = milliseconds_of({value}, {time.how!r}, from_text={time.from_text})")
        if time.how != "iso":
            self._add_line(f"if not {-_SAFE_MS} < ts < {_SAFE_MS}: raise Unusual")
        self._depth -= 1

    def _add_interval(self, order: Order) -> tuple[str, str]:
        """Adds lines that find the message's place in the order; returns code for its seq and for its after."""
        if order.kind is Ordering.NONE:
            return "None", "None"
        if order.kind is Ordering.ARRIVAL or order.seq is None:
            return self._name_record_field("offset"), "None"
        seq = self._add_number(order.seq)
        self._add_line(f"if {seq} < 0: raise Unusual")
        match order.kind:
            case Ordering.STEP:
                return seq, f"{seq} - 1"
            case Ordering.LINK if order.other is not None:
                return seq, self._add_number(order.other)
            case Ordering.RANGE if order.other is not None:
                return seq, f"{self._add_number(order.other)} - 1"
            case _:
                return seq, "None"

    def _add_number(self, path: Path) -> str:
        value = self._add_lookup(path, element=None)
        self._add_line(f"if type({value}) is not int or not {-INT64_MAX - 1} < {value} <= {INT64_MAX}: raise Unusual")
        return value

    # -- rows

    def _add_part(self, part: Rows) -> None:
        if part.each and part.source is not None:
            self._add_each(part, part.source)
            return
        element = "d"
        if part.source is not None:
            element = self._add_lookup(part.source, element=None, is_read=False)
            self._add_line(f"if {element} is M or {element} is None: raise Unusual")
        self._add_row(part, element)

    def _add_each(self, part: Rows, source: Path) -> None:
        """Adds a loop that reads a row from each element at a path."""
        if len(source.alternatives) != 1 or not isinstance(one := source.alternatives[0], Access):
            raise NoCodeError
        if one.entries or one.start is not Start.MESSAGE or _uses_parent(part):
            raise NoCodeError
        depth, value, steps = self._depth, "d", list(one.steps)
        while steps:
            step = steps.pop(0)
            if not isinstance(step, Each):
                value = self._add_step(value, step)
                continue
            self._add_line(f"if type({value}) is not list:")
            self._add_line(f"    if {value} is not M and {value} is not None: raise Unusual")
            self._add_line("else:")
            self._depth += 1
            item = self._new_name()
            self._shapes[item] = (self._shapes.get(value) or Shape()).find_items()
            self._add_line(f"for {item} in {value}:")
            self._depth += 1
            value = item
        if not isinstance(one.steps[-1], Each):
            self._add_line(f"if {value} is M or {value} is None: raise Unusual")
        self._add_row(part, value)
        self._depth = depth

    def _add_row(self, part: Rows, element: str) -> None:
        feed = self._feed
        places = {name: number for number, name in enumerate(feed.columns)}
        raw = self._raw_values(part, element)
        key = [raw[column.name][1] for column in feed.key]
        unknown = [one for column, one in zip(feed.key, key, strict=True) if not self._is_text(column)]
        for one in unknown:
            self._add_line(f"if {one} is M or {one} is None: raise Unusual")
        self._row_id(feed.key, key)
        deleted = self._write_deleted(part, raw)
        if deleted != "False":
            self._refuse_odd_decimals(deleted, [one for one in raw.values() if one[0] not in feed.key])
        added = {places[name]: value for name, (_, value) in raw.items()}
        for number, name in enumerate(feed.columns):
            value = added.get(number, "M")
            if part.absent_is_null and number in added:
                value = f"None if {value} is M else {value}"
            if deleted != "False" and feed.columns[name] not in feed.key and number in added:
                value = f"M if deleted else ({value})" if deleted != "True" else "M"
            self._add_line(f"add_c{number}({value})")
        self._add_line("add_row_id(row_id)")
        if "deletes" in self._added:
            self._add_line(f"add_deletes({deleted})")
        if "expect" in self._added:
            self._add_line(f"add_expect({None if part.expect is None else part.expect.value!r})")

    def _raw_values(self, part: Rows, element: str) -> dict[str, tuple[FeedColumn, str]]:
        """Adds lines that read a row's columns; returns each column with the variable that has its value."""
        shape, was_checked = self._shapes.get(element) or Shape(), element in self._checked
        if (shape.kind is not None or part.by_name) and not was_checked:
            kind = "dict" if shape.kind is None else self._name_type(shape.kind)
            self._add_line(f"if type({element}) is not {kind}: raise Unusual")
            self._checked.add(element)
        raw = {column.name: (column, self._add_value(column, path, element)) for column, path in part.values}
        for column in part.by_name:
            raw[column.name] = (column, self._add_conversion(column, self._add_step(element, Field(column.name))))
        shape.refuses.add(part.rescue)
        if part.rescue:
            self._refuse_undeclared(element, shape)
        if not was_checked:
            self._checked.discard(element)
        return raw

    def _refuse_odd_decimals(self, deleted: str, values: list[tuple[FeedColumn, str]]) -> None:
        """Adds a check of a deleted row's decimals, which are not added to the lists unless they are in the key."""
        for column, value in values:
            if is_decimal_text(column):
                is_plain = self._name_constant(re.compile(plain_decimal(column.sql)).fullmatch)
                self._add_line(f"if {deleted} and type({value}) is str and not {is_plain}({value}): raise Unusual")

    def _refuse_undeclared(self, element: str, shape: Shape) -> None:
        """Adds a check that leaves rows with undeclared fields to the interpreter, which stores these fields."""
        columns = self._feed.columns
        if shape.kind is None:
            for name in columns:
                shape.find_field(name)
            self._add_line(f"if not {element}.keys() <= {self._name_constant(frozenset(columns))}: raise Unusual")
        for name in shape.fields if shape.kind is not None else ():
            if name not in columns:
                self._add_line(f"if {element}.{shape.attribute_of(name)} is not M: raise Unusual")

    def _write_deleted(self, part: Rows, raw: dict[str, tuple[FeedColumn, str]]) -> str:
        """Returns code for "the row is deleted": `True`, `False`, or the variable `deleted`, which it sets."""
        if isinstance(part.delete, bool):
            return str(part.delete)
        tests = []
        for column, wanted in part.delete:
            value = raw[column.name][1]
            if wanted is None:
                tests.append(f"({value} is None or {value} is M)" if part.absent_is_null else f"{value} is None")
            else:
                tests.append(self._write_equals(column, value, wanted))
        self._add_line(f"deleted = {' and '.join(tests)}")
        return "deleted"

    def _list_orders(self) -> list[Order]:
        return [rule.order or self._feed.order for rule in self._feed.rules]

    def _write_equals(self, column: FeedColumn, value: str, wanted: Any) -> str:
        """Returns code for "the variable `value` equals `wanted`"."""
        test = f"{value} == {self._name_constant(wanted)}"
        if not is_decimal_text(column):
            return test
        # A text that is kept has only digits, a point and a sign.
        as_text = f"{self._name_constant(column.convert)}({value}) == {self._name_constant(wanted)}"
        as_text = f"not {value}.strip('-0.')" if wanted == 0 else as_text
        return f"(type({value}) is str and {as_text})"

    def _row_id(self, key: tuple[FeedColumn, ...], values: list[str]) -> None:
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

    def _add_value(self, column: FeedColumn, path: Path, element: str) -> str:
        """Adds lines that read a column's value in the variable `element`; returns the variable that has it."""
        if len(path.alternatives) == 1 and isinstance(one := path.alternatives[0], Constant):
            return self._name_constant(typed_constant(one, column))
        if any(isinstance(one, Constant) for one in path.alternatives):
            raise NoCodeError
        return self._add_conversion(column, self._add_lookup(path, element))


def _list_bodies(rule: Rule) -> list[Any]:
    """Returns the types of messages that the rule names."""
    return [body for one in rule.when if one.path is None and isinstance(one.wanted, tuple) for body in one.wanted]


def _uses_parent(part: Rows) -> bool:
    return any(
        isinstance(one, Access) and one.start is Start.PARENT for _, path in part.values for one in path.alternatives
    )
