"""Puts together the proposal of a feed: what the messages mean, and why the sample suggests it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sessionlake.feeds.inference.arrays import ProposedTable
from sessionlake.feeds.inference.change_capture import propose_change_capture_feed
from sessionlake.feeds.inference.kinds import MessageKindGroup, group_messages_by_kind
from sessionlake.feeds.inference.order import (
    ProposedSetting,
    choose_order_setting,
    choose_session_setting,
    choose_time_setting,
)
from sessionlake.feeds.inference.remarks import describe_proposed_settings, list_notes_for_user
from sessionlake.feeds.inference.sample import SampledMessage, SampledMessages, get_field_name
from sessionlake.feeds.inference.signed_levels import propose_signed_levels_feed
from sessionlake.feeds.inference.splits import MessageSplit, find_possible_message_splits, sample_parts_of_messages
from sessionlake.feeds.inference.tables import find_delete_setting, find_table_with_most_rows
from sessionlake.feeds.inference.upserts import propose_upsert_feed
from sessionlake.feeds.inference.words import HEARTBEAT, OF_DELETE, OF_SNAPSHOT, OF_UPDATE

_MUCH_LONGER = 5
"""A kind whose messages have this many times the rows of the others is a snapshot."""


@dataclass
class ProposedFeed:
    """A proposed feed.

    Attributes:
        settings: The feed as an entry of `capture.feeds`.
        seen: What the sample shows about a key or column, by its name.
        notes: What a reader should know or decide.
        parts: The parts of the messages, if the feed splits messages; else None.
    """

    settings: dict[str, Any]
    seen: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    parts: SampledMessages | None = None


def propose_feed(sample: SampledMessages, topic_or_file: str, topics: Sequence[str]) -> ProposedFeed | None:
    """Proposes a feed for the messages of a sample.

    Args:
        sample: The messages.
        topic_or_file: Name of the topic or file, from which the feed's name is made.
        topics: The topics of the messages.

    Returns:
        The proposal; None if no message of the sample has rows.
    """
    head = _build_name_and_topics_settings(topic_or_file, topics)
    captured = propose_change_capture_feed(sample) or propose_upsert_feed(sample) or propose_signed_levels_feed(sample)
    if captured is not None:
        settings, seen, notes = captured
        return ProposedFeed(head | settings, seen, notes)
    kinds = group_messages_by_kind(sample.messages)
    parts = _find_table_and_session(kinds)
    if parts is None:
        return None
    table, session, messages = parts
    order = _choose_order_setting_of_table(table, messages, sample.messages, session)
    if not _can_rules_separate_numbered_messages(kinds, order):
        order = ProposedSetting(None)
    rules = _build_rules_of_all_kinds(kinds, table, order, session.setting)
    found = _build_proposed_feed(sample, table, session, order, rules)
    found.settings = head | found.settings
    without = [group for group in kinds if not any(group is one for one in table.kinds)]
    if without:
        count = sum(len(group.messages) for group in without)
        found.notes.insert(0, f"messages without rows of this table: {count:,}")
    return found


def propose_feeds_that_split_messages(
    sample: SampledMessages, topic_or_file: str, topics: Sequence[str]
) -> Iterator[ProposedFeed]:
    """Yields feeds that read each message part by part, because it seems to hold several tables, the best feed first.

    Args:
        sample: The messages.
        topic_or_file: Name of the topic or file, from which the feed's name is made.
        topics: The topics of the messages.
    """
    for split in find_possible_message_splits(sample):
        taken = sample_parts_of_messages(sample, split)
        if taken is None:
            continue
        parts, others = taken
        kinds = group_messages_by_kind(parts.messages)
        found = _find_table_and_session(kinds)
        if found is None or not all("each" in part for rows in found[0].rows for part in rows):
            continue
        table, session, messages = found
        if split.is_object:
            names = {one.scalars[".key"] for one in parts.messages}
            session = ProposedSetting(".key", why=f"{len(names):,} different names of fields")
        if not isinstance(session.setting, str) or session.setting == "kafka.key":
            continue
        order = _choose_order_setting_of_table(table, messages, sample.messages, session, is_split=True)
        rules = [
            _build_rule_that_splits_messages(rule, split, has_others=bool(others))
            for rule in _build_rules_of_all_kinds(kinds, table, order, session.setting)
        ]
        rules += _build_rules_for_unsplit_messages(split, others, order.setting)
        proposal = _build_proposed_feed(sample, table, session, order, rules)
        proposal.settings = _build_name_and_topics_settings(topic_or_file, topics) | proposal.settings
        proposal.notes.insert(
            0, f"a message can hold several sessions, so it is read part by part: {split.path_of_parts}"
        )
        yield replace(proposal, parts=parts)


def _build_rule_that_splits_messages(rule: dict[str, Any], split: MessageSplit, *, has_others: bool) -> dict[str, Any]:
    """Returns a rule that reads each part of a message as a message.

    Args:
        rule: The rule for a part.
        split: Where messages have parts.
        has_others: True if there are messages without parts, which the rule must not read.
    """
    path, value = split.condition_of_messages_with_parts
    when = ({path: value} if has_others else {}) | rule.get("when", {})
    rest = {key: setting for key, setting in rule.items() if key not in ("when", "rows")}
    rows = {"rows": rule["rows"]} if "rows" in rule else {}
    return ({"when": when} if when else {}) | rest | {"split": {"each": split.path_of_parts}} | rows


def _build_rules_for_unsplit_messages(
    split: MessageSplit, unsplit_messages: Sequence[SampledMessage], order: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Returns the rules that ignore messages without parts.

    Messages without the chain's number get a separate rule, because they have no place in the chain.

    Args:
        split: Where the other messages have parts.
        unsplit_messages: The messages without parts.
        order: The setting `order`; None if there is none.
    """
    if not unsplit_messages or not split.path:
        return []
    rule: dict[str, Any] = {"when": {split.path: "absent"}, "is": "ignore"}
    seq = order["seq"] if order is not None and "chain" in order else None
    if seq is None or all(seq in one.scalars for one in unsplit_messages):
        return [rule]
    return [{"when": {split.path: "absent", seq: "absent"}, "is": "ignore", "order": "none"}, rule]


def _can_rules_separate_numbered_messages(kinds: Sequence[MessageKindGroup], order: ProposedSetting) -> bool:
    """Returns True if, in each kind of message, all messages have the chain's number or none has it.

    Otherwise rules cannot tell the two apart. Also True if `order`, the proposed setting, has no chain.
    """
    if order.setting is None or "chain" not in order.setting:
        return True
    return all(len({order.setting["seq"] in one.scalars for one in group.messages}) == 1 for group in kinds)


def _build_name_and_topics_settings(topic_or_file: str, topics: Sequence[str]) -> dict[str, Any]:
    return {"name": propose_feed_name(topic_or_file), "topics": "|".join(map(re.escape, topics)).replace(r"\-", "-")}


def _build_proposed_feed(
    sample: SampledMessages,
    table: ProposedTable,
    session: ProposedSetting,
    order: ProposedSetting,
    rules: list[dict[str, Any]],
) -> ProposedFeed:
    """Returns the feed with these settings and rules, its time, and what the sample shows about them."""
    time = choose_time_setting(_sort_messages_by_offset(table))
    has_snapshot = any(rule["is"] == "snapshot" for rule in rules)
    settings = {
        "session": session.setting,
        "key": table.key,
        "columns": {column: inferred.column_setting for column, inferred in table.columns.items()},
        "time": time.setting,
        "order": order.setting,
        "starts_with": None if has_snapshot else "anything",
        "messages": [*_propose_tombstone_rule(sample), *rules],
    }
    seen = {f"columns.{column}": inferred.seen for column, inferred in table.columns.items() if inferred.seen}
    return ProposedFeed(
        {key: value for key, value in settings.items() if value is not None},
        seen | describe_proposed_settings(session, time, order),
        list_notes_for_user(sample, has_snapshot=has_snapshot, is_ordered=order.setting is not None),
    )


def _choose_order_setting_of_table(
    table: ProposedTable,
    messages: Sequence[SampledMessage],
    all_messages: Sequence[SampledMessage],
    session: ProposedSetting,
    *,
    is_split: bool = False,
) -> ProposedSetting:
    """Chooses the setting `order`. `messages` have rows, and `all_messages` are all messages."""
    snapshots = {
        id(one)
        for number, group in enumerate(table.kinds)
        if _is_snapshot_kind(group, number, table)
        for one in group.messages
    }
    function = _create_session_reader(session.setting)
    return choose_order_setting(messages, all_messages, function, lambda one: id(one) in snapshots, is_split=is_split)


def propose_feed_name(topic_or_file: str) -> str:
    """Returns a valid name of a feed, made from the name of a topic or file."""
    plain = re.sub(r"[^a-z0-9]+", "_", topic_or_file.lower()).strip("_")
    return plain[:60] if re.match(r"[a-z]", plain) else f"feed_{plain}"[:60].rstrip("_")


def _find_table_and_session(
    kinds: Sequence[MessageKindGroup],
) -> tuple[ProposedTable, ProposedSetting, list[SampledMessage]] | None:
    """Finds the table that the messages describe and the field with the session id.

    The session id is a field of messages with rows, and which messages have rows can depend on the session. So the
    table is searched for twice: first without a session, then with the session that was found.

    Returns:
        The table, the session, and the messages with rows in the order of their offsets; None if no message has rows.
    """
    table = find_table_with_most_rows(kinds, _create_session_reader(None), None)
    if table is None:
        return None
    messages = _sort_messages_by_offset(table)
    used = {path for group in table.kinds for path in group.when}
    arrays = {part["each"] for parts in table.rows for part in parts if "each" in part}
    session = choose_session_setting(messages, used, arrays)
    path = session.setting if isinstance(session.setting, str) else None
    table = find_table_with_most_rows(kinds, _create_session_reader(session.setting), path) or table
    return table, session, _sort_messages_by_offset(table)


def _sort_messages_by_offset(table: ProposedTable) -> list[SampledMessage]:
    messages = [one for group in table.kinds for one in group.messages]
    return sorted(messages, key=lambda one: (one.record.topic, one.record.partition, one.record.offset))


def _create_session_reader(setting: Any) -> Callable[[SampledMessage], Any]:
    """Returns a function that returns the session of a message, given the setting `session`."""
    if isinstance(setting, str) and setting != "kafka.key":
        return lambda one: one.scalars.get(setting, _get_value_of_first_row(one, setting))
    if setting == "kafka.key":
        return lambda one: one.record.key
    return lambda one: (one.record.topic, one.record.partition)


def _get_value_of_first_row(message: SampledMessage, path: str) -> Any:
    """Returns the value at a path such as `data[0].symbol`; None if the message has none."""
    array, _, name = path.rpartition("[0].")
    rows = next((source.elements for source in message.sources if source.path == f"{array}[*]"), [])
    return rows[0].get(name) if rows and isinstance(rows[0], dict) else None


def _build_rules_of_all_kinds(
    kinds: Sequence[MessageKindGroup], table: ProposedTable, order: ProposedSetting, session_setting: Any
) -> list[dict[str, Any]]:
    """Returns the rules for all kinds of messages. Kinds without rows are ignored, all of one field in one rule.

    Args:
        kinds: All kinds of messages.
        table: The rows of the sample.
        order: The proposed order.
        session_setting: The setting `session_setting`.
    """
    rules: list[dict[str, Any]] = []
    ignored: list[MessageKindGroup] = []
    for group in sorted(kinds, key=lambda group: not group.when):
        number = next((n for n, one in enumerate(table.kinds) if one is group), None)
        if number is None:
            if _is_heartbeat_kind(group, order, session_setting):
                rules.append({"when": group.when, "is": "heartbeat"})
            else:
                ignored.append(group)
            continue
        is_snapshot = _is_snapshot_kind(group, number, table)
        rule: dict[str, Any] = {"when": group.when} if group.when else {}
        rule["is"] = "snapshot" if is_snapshot else "update"
        if is_snapshot and order.setting is not None:
            rule |= _build_snapshot_restart_settings(group, order.setting)
        rule["rows"] = [dict(part) for part in table.rows[number]]
        if not is_snapshot:
            _add_delete_settings(rule["rows"], find_delete_setting(table, group, table.rows[number]))
        rules.append(rule)
    needed = [[*rule["when"].items()][:1] for rule in rules if "when" in rule]
    seq = order.setting["seq"] if order.setting is not None and "chain" in order.setting else None
    others = [group for group in ignored if seq is not None and not all(seq in one.scalars for one in group.messages)]
    numbered = [group for group in ignored if not any(group is one for one in others)]
    unnumbered = [rule | {"order": "none"} for rule in _build_rules_that_ignore_kinds(others, needed)]
    return _sort_rules_without_condition_last([*rules, *_build_rules_that_ignore_kinds(numbered, needed), *unnumbered])


def _add_delete_settings(row_settings: list[dict[str, Any]], deleting_values: dict[str, Any] | bool) -> None:
    """Adds the setting `delete` to the rows of an update, also to those in an array with a name such as `deleted`."""
    for part in row_settings:
        delete = (
            deleting_values or OF_DELETE.search(get_field_name(part.get("each", "").removesuffix("[*]"))) is not None
        )
        if delete:
            part["delete"] = delete
        if delete is True and part["row"] == "all":
            part["row"] = "key"


def _build_snapshot_restart_settings(group: MessageKindGroup, order: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a snapshot by which the order starts again, without a number that snapshots lack."""
    other = order.get("after") or order.get("first")
    has_other = other is None or all(other in one.scalars for one in group.messages)
    return {"restart": True} if has_other else {"restart": True, "order": {"seq": order["seq"]}}


def _sort_rules_without_condition_last(rules: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rules with a condition first, because a rule without one reads everything that is left."""
    return sorted(rules, key=lambda rule: ("when" not in rule, [*rule.get("when", {})] == ["body"]))


def _is_heartbeat_kind(group: MessageKindGroup, order: ProposedSetting, session_setting: Any) -> bool:
    """Returns True if a kind without rows is named as a heartbeat, and its messages have a session and seq."""
    needed = [order.setting["seq"]] if order.setting else []
    needed += [session_setting] if isinstance(session_setting, str) and session_setting != "kafka.key" else []
    return bool(HEARTBEAT.search(group.label)) and all(
        one.scalars.get(path) is not None for one in group.messages for path in needed
    )


def _is_snapshot_kind(group: MessageKindGroup, kind_index: int, table: ProposedTable) -> bool:
    """Returns True if messages of a kind are snapshots, by their name, or because they have many more rows than others.

    `kind_index` is the index of the kind in `table.kinds`.
    """
    if OF_SNAPSHOT.search(group.label) or OF_UPDATE.search(group.label):
        return OF_SNAPSHOT.search(group.label) is not None
    others = [one for place, one in enumerate(table.kinds) if place != kind_index]
    if not others or "each" not in table.rows[kind_index][0]:
        return False
    most = max(_compute_mean_rows_per_message(one) for one in others)
    return _compute_mean_rows_per_message(group) >= _MUCH_LONGER * max(1.0, most)


def _compute_mean_rows_per_message(group: MessageKindGroup) -> float:
    return sum(len(source.elements) for one in group.messages for source in one.sources) / len(group.messages)


def _build_rules_that_ignore_kinds(
    ignored_kinds: Sequence[MessageKindGroup], needed_conditions: Sequence[Any]
) -> list[dict[str, Any]]:
    """Returns rules that ignore kinds. Kinds that differ in the last condition only are in one rule.

    Args:
        ignored_kinds: The ignored kinds.
        needed_conditions: First conditions of the other kinds. Without them, a first condition alone selects the
            ignored ones.
    """
    merged: dict[tuple[Any, ...], tuple[dict[str, Any], str, list[Any]]] = {}
    rules = []
    for group in ignored_kinds:
        conditions = [*group.when.items()][: None if [*group.when.items()][:1] in needed_conditions else 1]
        *first, (path, value) = conditions or [("", None)]
        if group.label and value not in {"present", "absent"}:
            values = merged.setdefault((*first, path), (dict(first), path, []))[2]
            values += [value] * (value not in values)
        else:
            rules.append({"when": group.when, "is": "ignore"} if group.when else {"is": "ignore"})
    return [
        *(
            {"when": {**first, path: found if len(found) > 1 else found[0]}, "is": "ignore"}
            for first, path, found in merged.values()
        ),
        *rules,
    ]


def _propose_tombstone_rule(sample: SampledMessages) -> list[dict[str, Any]]:
    return [{"when": {"body": "tombstone"}, "is": "ignore"}] if sample.tombstones else []
