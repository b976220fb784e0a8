"""Generates the Python code that reads the messages of one feed: a function with one loop.

The function decodes a value, tries the rules in order, and appends to `ColumnarEvents`. Texts of the configuration
enter the code only through `repr` or as values, so they cannot become code.
"""

from __future__ import annotations

from typing import Any, Final

from sessionlake.feeds.caches import SessionIdCache
from sessionlake.feeds.code import (
    NO_ELEMENT,
    CodeGenerationNotPossibleError,
    ElementVariables,
    split_path_before_constant,
)
from sessionlake.feeds.feed import (
    EventKind,
    EventTimeSetting,
    Feed,
    KafkaKeyFormat,
    MessageBodyType,
    MessageOrderSetting,
    MessageRule,
    OrderMethod,
    PresentOrAbsent,
    RuleCondition,
)
from sessionlake.feeds.joined_events import SplitMessageEventJoiner
from sessionlake.feeds.lists import NO_SCOPE, list_event_fields_fixed_by_rule
from sessionlake.feeds.numbers import NumberRange
from sessionlake.feeds.parsers import MOST_DIGITS, create_value_and_key_parsers, has_too_long_integer
from sessionlake.feeds.paths import FeedPath
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.row_writer import RowCodeWriter
from sessionlake.feeds.shapes import JsonShape
from sessionlake.feeds.times import convert_time_to_milliseconds
from sessionlake.feeds.values import convert_constant
from sessionlake.protocol.jsontext import is_json_nested_too_deep
from sessionlake.protocol.message import INT64_MAX, MAX_DEPTH
from sessionlake.protocol.payload import PayloadFormat

_SAFE_MS: Final = 2**53


class FeedCodeWriter(RowCodeWriter):
    """Generates the function of one feed, line by line. Methods append lines and return the names of variables.

    Args:
        feed: The feed.
        payload: Reads Avro and Protobuf; required if `feed.reads_avro_or_protobuf`.
        message_shape: Shape of the decoded message.
        message_type: The type that messages are decoded to: the type of the shape, or `Any`.
        stores_undeclared: True if the code stores undeclared fields of rows in `_rescued`. False if it leaves messages
            that have such fields to another reader.

    Attributes:
        names: Objects that the generated code uses, by their names in the code.
    """

    def __init__(
        self,
        feed: Feed,
        payload: PayloadReader | None,
        message_shape: JsonShape,
        message_type: Any = Any,
        *,
        stores_undeclared: bool = False,
    ) -> None:
        if feed.needs_digits:
            raise CodeGenerationNotPossibleError
        super().__init__(feed, message_shape, stores_undeclared=stores_undeclared)
        loads, load_key = create_value_and_key_parsers(feed, payload, message_type, keeps_digits=stores_undeclared)
        self.names |= {
            "has_too_long_integer": has_too_long_integer, "is_json_nested_too_deep": is_json_nested_too_deep,
            "NO_SCOPE": NO_SCOPE, "loads": loads, "load_key": load_key,
            "convert_time_to_milliseconds": convert_time_to_milliseconds,
        }  # fmt: skip

    def generate_function_code(self) -> str:
        """Returns the code of `read_all(numbers, records, max_bytes, out, unusual, rules)`; `numbers` are its messages.

        Until all messages are read, `out.rows` has the number of rows up to each event, and times may be ISO texts.
        The function adds the number of the rule of each event to `rules`, and the indices of messages for another
        reader to `unusual`. Lists with the same value for all events or rows stay empty.
        """
        feed = self._feed
        of_event, of_row = self._list_event_and_row_fields()
        self._added = {*of_event, *of_row}
        splits = any(rule.split is not None for rule in feed.rules)
        if splits:
            joined = tuple(name for name in of_event if name not in {"message", "rows"})
            constants = {rule.number: list_event_fields_fixed_by_rule(feed, rule) for rule in feed.rules}
            self.names["join_events"] = SplitMessageEventJoiner(feed, joined, constants).join_events_of_message
        self._block_depth = 3
        self._add_message_code()
        body, self._lines, self._block_depth = self._lines, [], 0
        self._add_code_line("def read_all(numbers, records, max_bytes, out, unusual, rules):")
        self._block_depth = 1
        for name in (*of_event, *of_row):
            self._add_code_line(f"add_{name} = out.{name}.append")
        for number in range(len(feed.columns)):
            self._add_code_line(f"add_c{number} = out.values[{number}].append")
        self._add_code_line("add_rule, row_id_list, ends = rules.append, out.row_id, out.rows")
        self._add_code_line(f"per_row = [{', '.join(f'out.{name}' for name in of_row)}, *out.values]")
        if splits:
            self._add_code_line(f"per_event = [rules, {', '.join(f'out.{name}' for name in of_event)}]")
        # A value with more levels than allowed has as many closing brackets, or it is no JSON.
        self._add_code_line(f"unchecked = min(max_bytes, {2 * MAX_DEPTH})")
        fields = sorted(self.record_fields)
        columns = ", ".join(f"records.{name}" for name in fields)
        self._add_code_line(f"for number, {', '.join(fields)} in zip(numbers, {columns}):")
        self._block_depth = 2
        if splits:
            self._add_code_line("first = len(ends)")
        self._add_code_line("try:")
        self._lines += body
        self._add_code_line("except Exception:")
        self._block_depth = 3
        if splits:
            self._add_code_line("for one in per_event: del one[first:]")
        self._add_code_line("for one in per_row: del one[ends[-1] if ends else 0 :]")
        self._add_code_line("unusual.append(number)")
        return "\n".join(self._lines) + "\n"

    def _list_event_and_row_fields(self) -> tuple[list[str], list[str]]:
        """Returns the names of the lists to which the code adds a value for each event, and for each row."""
        feed, rules = self._feed, self._feed.rules
        parts = [part for rule in rules for part in rule.rows]
        orders = [rule.order or feed.order for rule in rules]
        of_event = ["message", "session", "ts", "seq", "rows"]
        of_event += ["after"] * any(order.other or order.kind is OrderMethod.STEP for order in orders)
        of_event += ["sent"] * any(feed.find_checksum_path(rule) is not None for rule in rules)
        of_event += ["chain"] * any(order.chain is not None for order in orders)
        of_event += ["scope"] * any(rule.scope for rule in rules)
        of_row = ["row_id", *["deletes"] * any(part.delete for part in parts)]
        of_row += ["expect"] * any(part.expect for part in parts)
        of_row += ["rescued"] * self._rescues
        return of_event, of_row

    def _add_message_code(self) -> None:
        """Adds the lines that check and decode one message and then try the rules."""
        if self._feed.format is PayloadFormat.JSON:
            self._add_code_line("if len(value) > unchecked:")
            self._add_code_line("    if len(value) > max_bytes: raise Unusual")
            deep = f'value.count(b"[") + value.count(b"{{") > {MAX_DEPTH} and is_json_nested_too_deep(value.decode())'
            self._add_code_line(f"    if {deep}: raise Unusual")
            self._add_code_line(f"    if len(value) > {MOST_DIGITS} and has_too_long_integer(value): raise Unusual")
            self._add_code_line("if not value.isascii(): value.decode()")
        else:
            self._add_code_line("if value is None or len(value) > max_bytes: raise Unusual")
        self._add_code_line("d = loads(value)")
        kind, bodies = (
            self._shapes["d"].kind,
            {body for rule in self._feed.rules for body in _list_tested_body_types(rule)},
        )
        if kind is not None and bodies <= {MessageBodyType.TOMBSTONE, MessageBodyType.OBJECT}:
            self._add_code_line(f"if type(d) is not {self._register_type(kind)}: raise Unusual")
            self._checked.add("d")
        if self._feed.key_format is not KafkaKeyFormat.TEXT:
            key = self._use_kafka_record_field("key")
            self._add_code_line(f"key_value = M if {key} is None else load_key({key})")
        self._add_rules_code()

    # -- rules

    def _add_rules_code(self) -> None:
        """Adds a block for each rule, in a loop. The rule that has read the message leaves the loop by `break`.

        Rules that follow each other with the same `split` have one block.
        """
        self._add_code_line("while True:")
        self._block_depth += 1
        left = list(self._feed.rules)
        while left:
            split = left[0].split
            end = next((number for number, rule in enumerate(left) if rule.split != split), len(left))
            group = left[: 1 if split is None else end]
            conditions = [self._write_conditions_expression(rule, about_parts=False) for rule in group]
            any_met = "True" if "True" in conditions else " or ".join(f"({one})" for one in conditions)
            self._add_code_line(f"if {any_met}:")
            self._block_depth += 1
            if split is None:
                self._add_event_code(group[0], NO_ELEMENT)
            else:
                self._add_message_parts_code(split, [rule for rule in left if rule.split == split])
            self._add_code_line("break")
            self._block_depth -= 1
            if any_met == "True":
                break
            del left[: len(group)]
        self._add_code_line("raise Unusual")
        self._block_depth -= 1

    def _add_message_parts_code(self, split_path: FeedPath, rules: list[MessageRule]) -> None:
        """Adds lines that read each part of a message by the first of some rules whose conditions it meets.

        Args:
            split_path: The path of the parts.
            rules: The rules with this `split`, in order. The message meets the conditions of one of them, and of no
                rule before them.
        """
        depth, conditions = self._block_depth, []
        for rule in rules:
            conditions.append(self._create_variable_name())
            self._add_code_line(f"{conditions[-1]} = {self._write_conditions_expression(rule, about_parts=False)}")
        at = self._open_loop_over_path_elements(split_path, NO_ELEMENT)
        for condition, rule in zip(conditions, rules, strict=True):
            self._add_code_line(
                f"if {condition} and {self._write_conditions_expression(rule, about_parts=True, variables=at)}:"
            )
            self._block_depth += 1
            self._add_event_code(rule, at)
            self._add_code_line("continue")
            self._block_depth -= 1
        self._add_code_line("raise Unusual")
        self._block_depth = depth
        self._add_code_line("join_events(out, rules, per_row, first)")

    def _write_conditions_expression(
        self, rule: MessageRule, *, about_parts: bool, variables: ElementVariables = NO_ELEMENT
    ) -> str:
        """Returns code that is true if a message, or a part of it, meets the conditions of a rule that concern it."""
        concerned = [one for one in rule.when if one.has_condition_on_message_part == about_parts]
        return " and ".join(self._write_condition_expression(one, variables) for one in concerned) or "True"

    def _write_condition_expression(self, condition: RuleCondition, variables: ElementVariables) -> str:
        """Returns code that is true if a message, or a part of it, meets the condition."""
        if condition.path is None:
            wanted = condition.wanted if isinstance(condition.wanted, tuple) else ()
            types = {
                MessageBodyType.ARRAY: ["list"],
                MessageBodyType.OBJECT: ["dict"],
                MessageBodyType.TEXT: ["str"],
                MessageBodyType.TOMBSTONE: [],
            }
            if (kind := self._shapes["d"].kind) is not None:
                types[MessageBodyType.OBJECT if self._shapes["d"].fields else MessageBodyType.ARRAY].append(
                    self._register_type(kind)
                )
            return f"type(d) in ({''.join(f'{name}, ' for one in wanted for name in types[one])})"
        value = self._add_path_lookup_code(
            condition.path, variables, is_read=not isinstance(condition.wanted, PresentOrAbsent)
        )
        if isinstance(condition.wanted, PresentOrAbsent):
            return f"{value} is {'' if condition.wanted is PresentOrAbsent.ABSENT else 'not '}M"
        if isinstance(condition.wanted, NumberRange):
            return f"{self._register_constant(condition.wanted.contains_number)}({value})"
        tests = []
        for one in condition.wanted:
            if one is None:
                tests.append(f"{value} is None")
            elif isinstance(one, bool | str):
                tests.append(f"{value} is {one}" if isinstance(one, bool) else f"{value} == {str(one)!r}")
            else:
                # A double may be rounded to the wanted number.
                number = self._register_constant(one)
                self._add_code_line(f"if type({value}) is float and {value} == {number}: raise Unusual")
                tests.append(f"({value} == {number} and {value} is not True and {value} is not False)")
        return f"({' or '.join(tests)})"

    def _add_event_code(self, rule: MessageRule, variables: ElementVariables) -> None:
        """Adds lines that add the event of a message or part, and its rows, to the lists of events."""
        feed, order = self._feed, rule.order or self._feed.order
        if rule.kind is EventKind.IGNORE and order.chain is None:
            return
        seq, after = self._add_seq_interval_code(order, variables)
        fields = {"message": "number", "session": "''", "ts": "0", "seq": seq}
        fields |= {"after": "None" if rule.restart else after, "sent": "None", "chain": "None", "scope": "NO_SCOPE"}
        if order.chain is not None:
            fields["chain"] = self._add_text_lookup_code(order.chain, variables)
        if rule.kind is not EventKind.IGNORE:
            if (checksum := feed.find_checksum_path(rule)) is not None:
                found = self._add_path_lookup_code(checksum, variables)
                fields["sent"] = f"None if {found} is M else {found}"
            self._add_session_id_code(rule.session or feed.session, variables)
            self._add_event_time_code(rule.time or feed.time, variables)
            fields |= {"session": "session", "ts": "ts"}
            if rule.scope:
                fields["scope"] = self._add_snapshot_scope_code(rule, variables)
            for part in rule.rows:
                self._add_row_mapping_code(part, variables)
            if feed.refuse_repeats and rule.split is None:
                self._add_code_line("own = row_id_list[ends[-1] if ends else 0 :]")
                self._add_code_line("if len(set(own)) < len(own): raise Unusual")
        for name, value in fields.items():
            if name in self._added:
                self._add_code_line(f"add_{name}({value})")
        self._add_code_line(f"add_rule({rule.number}); add_rows(len(row_id_list))")

    def _add_snapshot_scope_code(self, rule: MessageRule, variables: ElementVariables) -> str:
        """Adds lines that read the values of a snapshot's scope; returns code for the dict that has them."""
        items = []
        for column, path in rule.scope:
            found, constant = split_path_before_constant(path)
            default = "M" if constant is None else self._register_constant(convert_constant(constant, column))
            name = self._create_variable_name()
            self._add_code_line(f"{name} = {default}")
            if found is not None:
                value = self._add_path_lookup_code(found, variables)
                self._add_code_line(f"if type({value}) is float: raise Unusual")
                converted = f"{self._register_constant(column.convert)}({value})"
                self._add_code_line(f"if {value} is not M: {name} = None if {value} is None else {converted}")
            self._add_code_line(f"if {name} is M: raise Unusual")
            items.append(f"{column.name!r}: {name}")
        return f"{{{', '.join(items)}}}"

    def _add_session_id_code(self, paths: tuple[FeedPath, ...], variables: ElementVariables) -> None:
        """Adds lines that set the variable `session` to the session id made of the texts at some paths."""
        parts = [self._add_text_lookup_code(path, variables) for path in paths]
        cache = self._register_constant(SessionIdCache())
        key = parts[0] if len(parts) == 1 else f"({', '.join(parts)})"
        self._add_code_line(f"session = {cache}.get({key})")
        self._add_code_line(f"if session is None: session = {cache}.compute_and_cache_session_id({key})")

    def _add_text_lookup_code(self, path: FeedPath, variables: ElementVariables) -> str:
        """Adds lines that read the text or whole number at a path; returns the variable that has it as text."""
        found, constant = split_path_before_constant(path)
        if found is None:
            return repr(constant.text if constant else "")
        value, text = self._add_path_lookup_code(found, variables), self._create_variable_name()
        self._add_code_line(f"if type({value}) is str: {text} = {value}")
        self._add_code_line(f"elif type({value}) is int: {text} = str({value})")
        self._add_code_line(f"elif type({value}) is bool: {text} = 'true' if {value} else 'false'")
        if constant is not None:
            self._add_code_line(f"elif {value} is M: {text} = {constant.text!r}")
        self._add_code_line("else: raise Unusual")
        return text

    def _add_event_time_code(self, time: EventTimeSetting, variables: ElementVariables) -> None:
        """Adds lines that set the variable `ts` to the event time: ms since 1970, or an ISO text."""
        if time.path is None:
            self._add_code_line(f"ts = {self._use_kafka_record_field('timestamp')}")
            return
        value = self._add_path_lookup_code(time.path, variables)
        if time.or_kafka:
            self._add_code_line(f"if {value} is M or {value} is None: ts = {self._use_kafka_record_field('timestamp')}")
            self._add_code_line("else:")
        else:
            self._add_code_line("if True:")
        self._block_depth += 1
        if time.how in {"epoch_ms", "epoch_us"} and not time.from_text:
            self._add_code_line(f"if type({value}) is not int: raise Unusual")
            self._add_code_line(f"ts = {value}{'' if time.how == 'epoch_ms' else ' // 1000'}")
        elif time.how == "iso":
            self._add_code_line(f"if type({value}) is not str: raise Unusual")
            self._add_code_line(f"ts = {value}")
        else:
            self._add_code_line(f"ts = convert_time_to_milliseconds({value}, {time.how!r}, from_text={time.from_text})")
        if time.how != "iso":
            self._add_code_line(f"if not {-_SAFE_MS} < ts < {_SAFE_MS}: raise Unusual")
        self._block_depth -= 1

    def _add_seq_interval_code(self, order: MessageOrderSetting, variables: ElementVariables) -> tuple[str, str]:
        """Adds lines that find the message's place in the order; returns code for its seq and for its after."""
        if order.kind is OrderMethod.NONE:
            return "None", "None"
        if order.kind is OrderMethod.ARRIVAL or order.seq is None:
            return self._use_kafka_record_field("offset"), "None"
        seq = self._add_integer_lookup_code(order.seq, variables)
        self._add_code_line(f"if {seq} < 0: raise Unusual")
        match order.kind:
            case OrderMethod.STEP:
                return seq, f"{seq} - 1"
            case OrderMethod.LINK if order.other is not None:
                return seq, self._add_integer_lookup_code(order.other, variables)
            case OrderMethod.RANGE if order.other is not None:
                return seq, f"{self._add_integer_lookup_code(order.other, variables)} - 1"
            case _:
                return seq, "None"

    def _add_integer_lookup_code(self, path: FeedPath, variables: ElementVariables) -> str:
        """Adds lines that read the whole number at a path; returns the variable that has it."""
        value = self._add_path_lookup_code(path, variables)
        self._add_code_line(
            f"if type({value}) is not int or not {-INT64_MAX - 1} < {value} <= {INT64_MAX}: raise Unusual"
        )
        return value


def _list_tested_body_types(rule: MessageRule) -> list[Any]:
    """Returns the types of Kafka values (`MessageBodyType`) that the conditions of a rule name."""
    return [body for one in rule.when if one.path is None and isinstance(one.wanted, tuple) for body in one.wanted]
