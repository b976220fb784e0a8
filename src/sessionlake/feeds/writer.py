"""Generates the Python code that reads the messages of one feed: a function with one loop.

The function decodes a value, tries the rules in order, and appends to `EventLists`. Texts of the configuration enter
the code only through `repr` or as values, so they cannot become code.
"""

from __future__ import annotations

from typing import Any, Final

from sessionlake.feeds.caches import SessionIds
from sessionlake.feeds.code import NoCodeError
from sessionlake.feeds.feed import Body, Condition, Feed, KeyFormat, Kind, Order, Ordering, Presence, Rule, Time
from sessionlake.feeds.numbers import Bounds
from sessionlake.feeds.parsers import MOST_DIGITS, create_parsers, has_long_number
from sessionlake.feeds.paths import Access, Path, Start
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.row_writer import RowWriter
from sessionlake.feeds.shapes import Shape
from sessionlake.feeds.times import convert_to_milliseconds
from sessionlake.protocol.jsontext import is_too_deep
from sessionlake.protocol.message import INT64_MAX, MAX_DEPTH
from sessionlake.protocol.payload import PayloadFormat

_SAFE_MS: Final = 2**53


class FeedWriter(RowWriter):
    """Generates the function of one feed, line by line. Methods append lines and return the names of variables.

    Args:
        feed: The feed.
        payload: Reads Avro and Protobuf; required if `feed.needs_payload`.
        message: Shape of the decoded message.
        kind: The type that messages are decoded to: the type of the shape, or `Any`.
        rescues: True if the code stores undeclared fields of rows in `_rescued`. False if it leaves messages that have
            such fields to another reader.

    Attributes:
        names: Objects that the generated code uses, by their names in the code.
    """

    def __init__(
        self, feed: Feed, payload: PayloadReader | None, message: Shape, kind: Any = Any, *, rescues: bool = False
    ) -> None:
        if feed.needs_digits:
            raise NoCodeError
        super().__init__(feed, message, rescues=rescues)
        loads, load_key = create_parsers(feed, payload, kind, keeps_digits=rescues)
        self.names |= {
            "has_long_number": has_long_number, "is_too_deep": is_too_deep,
            "loads": loads, "load_key": load_key, "convert_to_milliseconds": convert_to_milliseconds,
        }  # fmt: skip

    def function(self) -> str:
        """Returns the code of `read_all(numbers, records, max_bytes, out, unusual, rules)`; `numbers` are its messages.

        Until all messages are read, `out.rows` has the number of rows up to each event, and times may be ISO texts.
        The function adds the number of the rule of each event to `rules`, and the indices of messages for another
        reader to `unusual`. Lists with the same value for all events or rows stay empty.
        """
        feed = self._feed
        parts = [part for rule in feed.rules for part in rule.rows]
        of_event = ["message", "session", "ts", "seq", "rows"]
        of_event += ["after"] * any(order.other or order.kind is Ordering.STEP for order in self._list_orders())
        of_event += ["sent"] * any(feed.checksum_path(rule) is not None for rule in feed.rules)
        of_row = ["row_id", *["deletes"] * any(part.delete for part in parts)]
        of_row += ["expect"] * any(part.expect for part in parts)
        of_row += ["rescued"] * self._rescues
        self._added = {*of_event, *of_row}
        self._depth = 3
        self._add_message()
        body, self._lines, self._depth = self._lines, [], 0
        self._add_line("def read_all(numbers, records, max_bytes, out, unusual, rules):")
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
        self._add_line(f"for number, {', '.join(fields)} in zip(numbers, {columns}):")
        self._depth = 2
        self._add_line("try:")
        self._lines += body
        self._add_line("except Exception:")
        self._depth = 3
        self._add_line("for one in per_row: del one[ends[-1] if ends else 0 :]")
        self._add_line("unusual.append(number)")
        return "\n".join(self._lines) + "\n"

    def _add_message(self) -> None:
        """Adds the lines that check and decode one message and then try the rules."""
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
        """Adds the lines that read a message by a rule, if its conditions are met."""
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
        """Returns code that is true if a message meets the condition."""
        if condition.path is None:
            wanted = condition.wanted if isinstance(condition.wanted, tuple) else ()
            types = {Body.ARRAY: ["list"], Body.OBJECT: ["dict"], Body.TEXT: ["str"], Body.TOMBSTONE: []}
            if (kind := self._shapes["d"].kind) is not None:
                types[Body.OBJECT if self._shapes["d"].fields else Body.ARRAY].append(self._name_type(kind))
            return f"type(d) in ({''.join(f'{name}, ' for one in wanted for name in types[one])})"
        value = self._add_lookup(condition.path, element=None, is_read=not isinstance(condition.wanted, Presence))
        if isinstance(condition.wanted, Presence):
            return f"{value} is {'' if condition.wanted is Presence.ABSENT else 'not '}M"
        if isinstance(condition.wanted, Bounds):
            return f"{self._name_constant(condition.wanted.include)}({value})"
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
        """Adds lines that add the event of a message, and its rows, to the lists of events."""
        feed = self._feed
        if (checksum := feed.checksum_path(rule)) is not None:
            found = self._add_lookup(checksum, element=None)
            self._add_line(f"sent = None if {found} is M else {found}")
        elif "sent" in self._added:
            self._add_line("sent = None")
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
        """Adds lines that set the variable `session` to the session id made of the texts at some paths."""
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
        """Adds lines that set the variable `ts` to the event time: ms since 1970, or an ISO text."""
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
            self._add_line(f"ts = convert_to_milliseconds({value}, {time.how!r}, from_text={time.from_text})")
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
        """Adds lines that read the whole number at a path; returns the variable that has it."""
        value = self._add_lookup(path, element=None)
        self._add_line(f"if type({value}) is not int or not {-INT64_MAX - 1} < {value} <= {INT64_MAX}: raise Unusual")
        return value

    def _list_orders(self) -> list[Order]:
        return [rule.order or self._feed.order for rule in self._feed.rules]


def _list_bodies(rule: Rule) -> list[Any]:
    """Returns the types of Kafka values (`Body`) that the conditions of a rule name."""
    return [body for one in rule.when if one.path is None and isinstance(one.wanted, tuple) for body in one.wanted]
