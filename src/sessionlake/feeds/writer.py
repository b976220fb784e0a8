"""Generates the Python code that reads the messages of one feed: a function with one loop.

The function decodes a value, tries the rules in order, and appends to `EventLists`. Texts of the configuration enter
the code only through `repr` or as values, so they cannot become code.
"""

from __future__ import annotations

from typing import Any, Final

from sessionlake.feeds.code import CACHED, CodeWriter, NoCodeError, is_decimal_text
from sessionlake.feeds.feed import Body, Condition, Feed, KeyFormat, Kind, Order, Ordering, Presence, Rows, Rule, Time
from sessionlake.feeds.interpret import session_of
from sessionlake.feeds.parsers import create_parsers
from sessionlake.feeds.paths import Access, Constant, Each, Path, Start
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.row_ids import row_id_of
from sessionlake.feeds.times import iso_milliseconds, milliseconds_of
from sessionlake.feeds.values import FeedColumn, typed_constant
from sessionlake.protocol.jsontext import is_too_deep
from sessionlake.protocol.message import INT64_MAX, MAX_DEPTH, MAX_ID_BYTES
from sessionlake.protocol.payload import PayloadFormat

_SAFE_MS: Final = 2**53


class FeedWriter(CodeWriter):
    """Generates the function of one feed, line by line. Methods append lines and return the names of variables.

    Attributes:
        names: Objects that the generated code uses, by their names in the code.
    """

    def __init__(self, feed: Feed, payload: PayloadReader | None) -> None:
        if feed.needs_digits:
            raise NoCodeError
        self._feed = feed
        super().__init__(feed)
        loads, load_key = create_parsers(feed, payload)
        self.names |= {
            "is_too_deep": is_too_deep, "iso_milliseconds": iso_milliseconds,
            "loads": loads, "load_key": load_key, "milliseconds_of": milliseconds_of,
            "row_id_of": row_id_of, "session_of": session_of,
        }  # fmt: skip

    def function(self) -> str:
        """Returns the code of `read_all(records, max_bytes, out, unusual, rules)`.

        It adds the rule of each event to `rules`, and the indices of messages for the interpreter to `unusual`. Lists
        with the same value for all events or rows stay empty.
        """
        feed = self._feed
        parts = [part for rule in feed.rules for part in rule.rows]
        of_event = ["message", "session", "ts", "seq", "is_link", "rows"]
        of_event += ["after"] * any(order.other or order.kind is Ordering.STEP for order in self._orders())
        of_event += ["sent"] * (feed.check is not None and feed.check.sent is not None)
        of_row = ["row_id", *["deletes"] * any(part.delete for part in parts)]
        of_row += ["expect"] * any(part.expect for part in parts)
        self._added = {*of_event, *of_row}
        self._line("def read_all(records, max_bytes, out, unusual, rules):")
        self._depth += 1
        for name in (*of_event, *of_row):
            self._line(f"add_{name} = out.{name}.append")
        for number in range(len(feed.columns)):
            self._line(f"add_c{number} = out.values[{number}].append")
        self._line("add_rule, n_events, n_rows = rules.append, 0, 0")
        self._line("sessions, row_ids, row_id_list = {}, {}, out.row_id")
        self._line(f"events = [{', '.join(f'out.{name}' for name in of_event)}, rules]")
        self._line(f"per_row = [{', '.join(f'out.{name}' for name in of_row)}, *out.values]")
        self._line("for number, record in enumerate(records):")
        self._depth += 1
        self._line("raw = record.value")
        self._line("n_events, n_rows = len(out.rows), len(row_id_list)")
        self._line("try:")
        self._depth += 1
        self._line("if raw is None or len(raw) > max_bytes: raise Unusual")
        if feed.format is PayloadFormat.JSON:
            deep = f'raw.count(b"[") + raw.count(b"{{") > {MAX_DEPTH} and is_too_deep(raw.decode())'
            self._line(f"if {deep}: raise Unusual")
        self._line("d = loads(raw)")
        if feed.key_format is not KeyFormat.TEXT:
            self._line("key_value = M if record.key is None else load_key(record.key)")
        self._rules()
        self._depth -= 1
        self._line("except Exception:")
        self._depth += 1
        self._line("for one in events: del one[n_events:]")
        self._line("for one in per_row: del one[n_rows:]")
        self._line("unusual.append(number)")
        return "\n".join(self._lines) + "\n"

    # -- rules

    def _rules(self) -> None:
        """Adds a block for each rule, in a loop. The rule that has read the message leaves the loop by `break`."""
        self._line("while True:")
        self._depth += 1
        for rule in self._feed.rules:
            self._rule(rule)
        self._line("raise Unusual")
        self._depth -= 1

    def _rule(self, rule: Rule) -> None:
        conditions = [self._condition(one) for one in rule.when]
        self._line(f"if {' and '.join(conditions) or 'True'}:")
        self._depth += 1
        order = rule.order or self._feed.order
        if rule.split is not None or rule.scope or order.chain is not None or order.modulo is not None:
            self._line("raise Unusual")
        elif rule.kind is Kind.IGNORE:
            self._line("break")
        else:
            self._event(rule, order)
            self._line("break")
        self._depth -= 1

    def _condition(self, condition: Condition) -> str:
        if condition.path is None:
            types = {Body.ARRAY: "list", Body.OBJECT: "dict", Body.TEXT: "str"}
            wanted = condition.wanted if isinstance(condition.wanted, tuple) else ()
            return f"type(d) in ({''.join(f'{types[one]}, ' for one in wanted if one in types)})"
        value = self._find(condition.path, element=None)
        if isinstance(condition.wanted, Presence):
            return f"{value} is {'' if condition.wanted is Presence.ABSENT else 'not '}M"
        tests = []
        for one in condition.wanted:
            if one is None:
                tests.append(f"{value} is None")
            elif isinstance(one, bool):
                tests.append(f"{value} is {one}")
            else:
                tests.append(f"({value} == {self._constant(one)} and {value} is not True and {value} is not False)")
        return f"({' or '.join(tests)})"

    def _event(self, rule: Rule, order: Order) -> None:
        feed = self._feed
        if feed.check is not None and feed.check.sent is not None:
            found = self._find(feed.check.sent, element=None)
            self._line(f"sent = None if {found} is M else {found}")
        self._session(rule.session or feed.session)
        self._time(rule.time or feed.time)
        self._interval(order)
        for part in rule.rows:
            self._part(part)
        if feed.refuse_repeats:
            self._line("if len(set(row_id_list[n_rows:])) != len(row_id_list) - n_rows: raise Unusual")
        is_link = order.kind is Ordering.LINK and not rule.restart
        self._line("add_message(number); add_session(session); add_ts(ts); add_seq(seq)")
        self._line(f"add_is_link({is_link}); add_rule({self._constant(rule)})")
        if "after" in self._added:
            self._line(f"add_after({'None' if rule.restart else 'after'})")
        if "sent" in self._added:
            self._line("add_sent(sent)")
        self._line("add_rows(len(row_id_list) - n_rows)")

    def _session(self, paths: tuple[Path, ...]) -> None:
        parts = [self._find(path, element=None) for path in paths]
        for path, part in zip(paths, parts, strict=True):
            numbers = {Start.PARTITION, Start.OFFSET, Start.TIMESTAMP}
            if all(isinstance(one, Access) and one.start in numbers for one in path.alternatives):
                self._line(f"{part} = str({part})")
            self._line(f"if type({part}) is not str: raise Unusual")
        self._line(f"parts = ({''.join(f'{part}, ' for part in parts)})")
        self._line("session = sessions.get(parts)")
        self._line("if session is None:")
        self._line(f"    if len(sessions) > {CACHED}: sessions.clear()")
        self._line("    session = sessions[parts] = session_of(parts)")
        self._line("    if session is None: raise Unusual")

    def _time(self, time: Time) -> None:
        if time.path is None:
            self._line("ts = record.timestamp")
            return
        value = self._find(time.path, element=None)
        if time.or_kafka:
            self._line(f"if {value} is M or {value} is None: ts = record.timestamp")
            self._line("else:")
        else:
            self._line("if True:")
        self._depth += 1
        if time.how in {"epoch_ms", "epoch_us"} and not time.from_text:
            self._line(f"if type({value}) is not int: raise Unusual")
            self._line(f"ts = {value}{'' if time.how == 'epoch_ms' else ' // 1000'}")
        elif time.how == "iso":
            self._line(f"ts = iso_milliseconds({value}, {self._constant({})})")
        else:
            self._line(f"ts = milliseconds_of({value}, {time.how!r}, from_text={time.from_text})")
        self._line(f"if not {-_SAFE_MS} < ts < {_SAFE_MS}: raise Unusual")
        self._depth -= 1

    def _interval(self, order: Order) -> None:
        if order.kind is Ordering.NONE:
            self._line("seq, after = None, None")
            return
        if order.kind is Ordering.ARRIVAL or order.seq is None:
            self._line("seq, after = record.offset, None")
            return
        self._line(f"seq = {self._number(order.seq)}")
        self._line("if seq < 0: raise Unusual")
        match order.kind:
            case Ordering.STEP:
                self._line("after = seq - 1")
            case Ordering.LINK if order.other is not None:
                self._line(f"after = {self._number(order.other)}")
            case Ordering.RANGE if order.other is not None:
                self._line(f"after = {self._number(order.other)} - 1")
            case _:
                self._line("after = None")

    def _number(self, path: Path) -> str:
        value = self._find(path, element=None)
        self._line(f"if type({value}) is not int or not {-INT64_MAX - 1} < {value} <= {INT64_MAX}: raise Unusual")
        return value

    # -- rows

    def _part(self, part: Rows) -> None:
        if part.each and part.source is not None:
            self._each(part, part.source)
            return
        element = "d"
        if part.source is not None:
            element = self._find(part.source, element=None)
            self._line(f"if {element} is M or {element} is None: raise Unusual")
        self._row(part, element)

    def _each(self, part: Rows, source: Path) -> None:
        """Adds a loop that reads a row from each element at a path."""
        if len(source.alternatives) != 1 or not isinstance(one := source.alternatives[0], Access):
            raise NoCodeError
        if one.entries or one.start is not Start.MESSAGE or _uses_parent(part):
            raise NoCodeError
        depth, value, steps = self._depth, "d", list(one.steps)
        while steps:
            step = steps.pop(0)
            if not isinstance(step, Each):
                value = self._step(value, step)
                continue
            self._line(f"if {value} is not M and {value} is not None:")
            self._depth += 1
            self._line(f"if type({value}) is not list: raise Unusual")
            item = self._name()
            self._line(f"for {item} in {value}:")
            self._depth += 1
            value = item
        if not isinstance(one.steps[-1], Each):
            self._line(f"if {value} is M or {value} is None: raise Unusual")
        self._row(part, value)
        self._depth = depth

    def _row(self, part: Rows, element: str) -> None:
        feed = self._feed
        places = {name: number for number, name in enumerate(feed.columns)}
        raw = {column.name: (column, self._value(column, path, element)) for column, path in part.values}
        if part.by_name:
            self._line(f"if type({element}) is not dict: raise Unusual")
            for column in part.by_name:
                name = self._name()
                self._line(f"{name} = {element}.get({column.name!r}, M)")
                raw[column.name] = (column, self._converted(column, name))
        if part.rescue:
            self._refuse_undeclared(element)
        key = [raw[column.name][1] for column in feed.key]
        self._line(f"if {' or '.join(f'{one} is M or {one} is None' for one in key)}: raise Unusual")
        self._row_id(feed.key, key)
        deleted = self._deleted(part, raw)
        added = {places[name]: value for name, (_, value) in raw.items()}
        for number, name in enumerate(feed.columns):
            value = added.get(number, "M")
            if part.absent_is_null and number in added:
                value = f"None if {value} is M else {value}"
            if deleted != "False" and feed.columns[name] not in feed.key and number in added:
                value = f"M if deleted else ({value})" if deleted != "True" else "M"
            self._line(f"add_c{number}({value})")
        self._line("add_row_id(row_id)")
        if "deletes" in self._added:
            self._line(f"add_deletes({deleted})")
        if "expect" in self._added:
            self._line(f"add_expect({None if part.expect is None else part.expect.value!r})")

    def _refuse_undeclared(self, element: str) -> None:
        """Adds a check that leaves rows with undeclared fields to the interpreter, which stores these fields."""
        declared = self._constant(frozenset(self._feed.columns))
        self._line(f"if not {element}.keys() <= {declared}: raise Unusual")

    def _deleted(self, part: Rows, raw: dict[str, tuple[FeedColumn, str]]) -> str:
        """Returns code for "the row is deleted": `True`, `False`, or the variable `deleted`, which it sets."""
        if isinstance(part.delete, bool):
            return str(part.delete)
        tests = []
        for column, wanted in part.delete:
            value = raw[column.name][1]
            if wanted is None:
                tests.append(f"({value} is None or {value} is M)" if part.absent_is_null else f"{value} is None")
            else:
                tests.append(self._equals(column, value, wanted))
        self._line(f"deleted = {' and '.join(tests)}")
        return "deleted"

    def _orders(self) -> list[Order]:
        return [rule.order or self._feed.order for rule in self._feed.rules]

    def _equals(self, column: FeedColumn, value: str, wanted: Any) -> str:
        """Returns code for "the variable `value` equals `wanted`"."""
        test = f"{value} == {self._constant(wanted)}"
        if not is_decimal_text(column):
            return test
        # A text that is kept has only digits, a point and a sign.
        as_text = f"{self._constant(column.convert)}({value}) == {self._constant(wanted)}"
        as_text = f"not {value}.strip('-0.')" if wanted == 0 else as_text
        return f"(({as_text}) if type({value}) is str else {test})"

    def _row_id(self, key: tuple[FeedColumn, ...], values: list[str]) -> None:
        if len(key) == 1 and key[0].sql == "string":
            self._line(f"row_id = {values[0]}")
            self._line(f"if not 0 < len(row_id) <= {MAX_ID_BYTES // 4}: raise Unusual")
            return
        self._line(f"key = ({''.join(f'{value}, ' for value in values)})")
        self._line("row_id = row_ids.get(key)")
        self._line("if row_id is None:")
        self._line(f"    if len(row_ids) > {CACHED}: row_ids.clear()")
        typed = [
            f"{self._constant(column.convert)}({value}) if type({value}) is str else {value}"
            if is_decimal_text(column)
            else value
            for column, value in zip(key, values, strict=True)
        ]
        self._line(f"    row_id = row_ids[key] = row_id_of(({''.join(f'{one}, ' for one in typed)}))")
        self._line(f"    if len(row_id) > {MAX_ID_BYTES // 4}: raise Unusual")

    def _value(self, column: FeedColumn, path: Path, element: str) -> str:
        """Adds lines that read a column's value in the variable `element`; returns the variable that has it."""
        if len(path.alternatives) == 1 and isinstance(one := path.alternatives[0], Constant):
            return self._constant(typed_constant(one, column))
        if any(isinstance(one, Constant) for one in path.alternatives):
            raise NoCodeError
        return self._converted(column, self._find(path, element))


def _uses_parent(part: Rows) -> bool:
    return any(
        isinstance(one, Access) and one.start is Start.PARENT for _, path in part.values for one in path.alternatives
    )
