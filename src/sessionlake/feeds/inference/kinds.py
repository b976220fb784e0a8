"""Groups messages by kind: by a field such as `type`, or by the arrays that they have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sessionlake.feeds.inference.sample import SampledMessage, get_field_name
from sessionlake.feeds.inference.words import KINDS, OF_SNAPSHOT, OF_UPDATE, rank_field_name

_MOST_KINDS = 20
_LONGEST = 40
_LEAST_SHARE = 0.3
_FEW_ALIKE = 3
"""A field with more values whose messages look alike is less likely to name kinds; it may name sessions."""
_MOST_ALIKE = 0.3
"""Most values of a second field, as a share, whose messages look like those of another value."""
_MOST_FIELDS = 2
"""Most fields that together name a kind, such as a channel and an action."""
_LEAST_GAIN = 0.1
"""Least share of messages that a second field must separate from messages of another form."""


@dataclass
class MessageKindGroup:
    """Messages of one kind.

    Attributes:
        when: The conditions that select them, as a rule has them.
        messages: The messages.
        label: The value that names the kind; "" if no field does.
    """

    when: dict[str, Any]
    messages: list[SampledMessage] = field(default_factory=list)
    label: str = ""


def group_messages_by_kind(messages: Sequence[SampledMessage]) -> list[MessageKindGroup]:
    """Returns the kinds of messages, in the order of their first message. Kinds without a condition are last."""
    return _group_messages_by_kind_field(messages, ())


def _group_messages_by_kind_field(
    messages: Sequence[SampledMessage], used_fields: tuple[str, ...]
) -> list[MessageKindGroup]:
    """Groups messages by the field that separates them best, and each group by a second one if that separates more.

    Args:
        messages: The messages.
        used_fields: The fields by which they were separated from others already.
    """
    named = find_field_that_names_kind(messages, used_fields)
    if named is None:
        return _group_messages_by_array_names(messages)
    groups: dict[str, list[SampledMessage]] = {}
    without = []
    for one in messages:
        label = one.scalars.get(named)
        if isinstance(label, str):
            groups.setdefault(label, []).append(one)
        else:
            without.append(one)
    found = [
        MessageKindGroup({named: label, **group.when}, group.messages, f"{label} {group.label}".strip())
        for label, members in groups.items()
        for group in _divide_messages_of_one_kind(members, (*used_fields, named))
    ]
    rest = _group_messages_by_kind_field(without, ()) if without else []
    for group in rest:
        group.when = {named: "absent", **group.when} if not group.when else group.when
    return [*found, *rest]


def _divide_messages_of_one_kind(
    messages: list[SampledMessage], used_fields: tuple[str, ...]
) -> list[MessageKindGroup]:
    """Divides messages of one kind, if a second field or their arrays tell all of them apart."""
    if len(used_fields) < _MOST_FIELDS:
        inner = _group_messages_by_kind_field(messages, used_fields)
        if len(inner) > 1 and all(group.when for group in inner):
            return inner
    return [MessageKindGroup({}, messages)]


def find_field_that_names_kind(messages: Sequence[SampledMessage], used_fields: Collection[str] = ()) -> str | None:
    """Returns the path of the field that best says what kind a message is; None if no field does.

    Args:
        messages: The messages.
        used_fields: Fields by which the messages were separated from others. A further field must have the name of a
            kind, and separate many of the rest.
    """
    values: defaultdict[str, Counter[Any]] = defaultdict(Counter)
    for one in messages:
        for path, value in one.scalars.items():
            values[path][value if isinstance(value, str) else type(value)] += 1
    forms = [_collect_paths_of_message(one) for one in messages]
    without = max(Counter(forms).values(), default=0)
    scores = {}
    for path in values.keys() - {*used_fields}:
        if _may_values_name_kinds(path, values[path], 0 if used_fields else len(messages)):
            typical = _find_most_frequent_form_of_each_value(messages, forms, path)
            after = sum(count for _, count in typical)
            gain = (after - without) / len(messages)
            alike = len(typical) - len({form for form, _ in typical})
            separates = rank_field_name(get_field_name(path), KINDS) and (
                gain >= _LEAST_GAIN or without < after == len(messages)
            )
            separates = separates and alike <= _MOST_ALIKE * len(typical)
            scores[path] = _score_as_kind_field(path, values[path], gain, alike) if separates or not used_fields else 0
    best = max(sorted(scores), key=lambda path: (scores[path], -len(path)), default=None)
    return best if best is not None and scores[best] > 1 else None


def _may_values_name_kinds(path: str, value_counts: Counter[Any], message_count: int) -> bool:
    """Returns True if the values at a path may name kinds of messages. `value_counts` says how often each occurs."""
    labels = [value for value in value_counts if isinstance(value, str)]
    if (
        len(labels) != len(value_counts)
        or not 1 <= len(labels) <= _MOST_KINDS
        or path.startswith("[")
        or path == "body"
    ):
        return False
    return value_counts.total() >= _LEAST_SHARE * message_count and all(len(label) <= _LONGEST for label in labels)


def _score_as_kind_field(path: str, value_counts: Counter[Any], gain: float, alike_values: int) -> float:
    """Returns how well a field separates messages into kinds; 0 if it cannot.

    Args:
        path: The path of the field.
        value_counts: How often each value occurs.
        gain: How much purer the messages with the same value are.
        alike_values: Number of values whose messages look like those of another value.
    """
    known = rank_field_name(get_field_name(path), KINDS)
    speaks = any(OF_SNAPSHOT.search(label) or OF_UPDATE.search(label) for label in value_counts)
    if len(value_counts) == value_counts.total() and not speaks:  # a different value in each message
        return 0
    if len(value_counts) == 1 and gain <= 0 and not speaks:
        return 0
    score = (2 + known / len(KINDS) if known else 0) + 2 * speaks * bool(known) + 3 * max(0.0, gain)
    return score - path.count(".") / 4 - max(0, alike_values - _FEW_ALIKE) / 4


def _find_most_frequent_form_of_each_value(
    messages: Sequence[SampledMessage], forms: Sequence[frozenset[str]], path: str
) -> list[tuple[frozenset[str], int]]:
    """Returns for each value at a path the most frequent form of its messages, and how many have it.

    `forms` has the form of each message: the paths that it has.
    """
    groups: defaultdict[Any, Counter[frozenset[str]]] = defaultdict(Counter)
    for one, form in zip(messages, forms, strict=True):
        label = one.scalars.get(path)
        groups[label if isinstance(label, str) else None][form] += 1
    return [found.most_common(1)[0] for found in groups.values()]


def _collect_paths_of_message(message: SampledMessage) -> frozenset[str]:
    """Returns the paths of the single values, the arrays, and the fields of the first objects in a message."""
    first = [
        (source.path, item) for source in message.sources for item in source.elements[:1] if isinstance(item, dict)
    ]
    fields = [f"{path}.{name}" for path, item in first for name in item]
    return frozenset([*message.scalars, *(source.path for source in message.sources), *fields])


def _group_messages_by_array_names(messages: Sequence[SampledMessage]) -> list[MessageKindGroup]:
    """Groups messages that share names of arrays. Objects and arrays are never of the same kind."""
    linked: dict[tuple[type, str], tuple[type, str]] = {}

    def find_first_linked_name(name: tuple[type, str]) -> tuple[type, str]:
        while linked.setdefault(name, name) != name:
            name = linked[name]
        return name

    for one in messages:
        names = [(type(one.value), source.name) for source in one.sources]
        for name in names[1:]:
            linked[find_first_linked_name(name)] = find_first_linked_name(names[0])
    groups: dict[Any, MessageKindGroup] = {}
    for one in messages:
        first = next(((type(one.value), source.name) for source in one.sources), (type(one.value), None))
        label = find_first_linked_name(first) if first[1] is not None else first
        groups.setdefault(label, MessageKindGroup({})).messages.append(one)
    found = sorted(groups.values(), key=lambda group: _find_path_of_common_array(group) is None or len(group.messages))
    if len(found) > 1:
        for group in found:
            group.when = _find_condition_that_selects_kind(group, found)
    return sorted(found, key=lambda group: not group.when)


def _find_path_of_common_array(group: MessageKindGroup) -> str | None:
    """Returns the path of an array that all messages of a kind have, without its `[*]`; None if there is none."""
    paths = [{source.path for source in one.sources if source.name} for one in group.messages]
    common = sorted(set.intersection(*paths)) if paths else []
    return common[0].removesuffix("[*]") if common else None


def _find_condition_that_selects_kind(group: MessageKindGroup, groups: Sequence[MessageKindGroup]) -> dict[str, Any]:
    """Returns a condition that only messages of this kind meet; empty if none is known."""
    own = type(group.messages[0].value)
    same = [one for one in groups if one is not group and isinstance(one.messages[0].value, own)]
    if not same:
        return {"body": "array" if own is list else "object"}
    path = _find_path_of_common_array(group)
    return {} if path is None else {path: "present"}
