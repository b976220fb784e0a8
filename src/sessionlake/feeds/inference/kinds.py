"""Groups messages by kind: by a field such as `type`, or by the arrays that they have."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sessionlake.feeds.inference.sample import Sampled, name_of
from sessionlake.feeds.inference.words import KINDS, OF_SNAPSHOT, OF_UPDATE, rank

_MOST_KINDS = 20
_LONGEST = 40
_LEAST_SHARE = 0.3


@dataclass
class KindGroup:
    """Messages of one kind.

    Attributes:
        when: The conditions that select them, as a rule has them.
        messages: The messages.
        label: The value that names the kind; "" if no field does.
    """

    when: dict[str, Any]
    messages: list[Sampled] = field(default_factory=list)
    label: str = ""


def group_by_kind(messages: Sequence[Sampled]) -> list[KindGroup]:
    """Returns the kinds of messages, in the order of their first message. Kinds without a condition are last."""
    named = find_kind_field(messages)
    if named is None:
        return _group_by_arrays(messages)
    groups: dict[Any, KindGroup] = {}
    without = []
    for one in messages:
        label = one.scalars.get(named)
        if isinstance(label, str):
            groups.setdefault(label, KindGroup({named: label}, label=label)).messages.append(one)
        else:
            without.append(one)
    rest = _group_by_arrays(without)
    for group in rest:
        group.when = {named: "absent", **group.when} if not group.when else group.when
    return [*groups.values(), *rest]


def find_kind_field(messages: Sequence[Sampled]) -> str | None:
    """Returns the path of the field that best says what kind a message is; None if no field does."""
    values: defaultdict[str, Counter[Any]] = defaultdict(Counter)
    for one in messages:
        for path, value in one.scalars.items():
            values[path][value if isinstance(value, str) else type(value)] += 1
    scores = {path: _score_field(path, counts, messages) for path, counts in values.items()}
    best = max(scores, key=lambda path: (scores[path], -len(path)), default=None)
    return best if best is not None and scores[best] > 1 else None


def _score_field(path: str, counts: Counter[Any], messages: Sequence[Sampled]) -> float:
    """Returns how well a field separates messages into kinds; 0 if it cannot."""
    labels = [value for value in counts if isinstance(value, str)]
    known = rank(name_of(path), KINDS)
    if len(labels) != len(counts) or not 1 <= len(labels) <= _MOST_KINDS or path.startswith("[") or path == "body":
        return 0
    if counts.total() < _LEAST_SHARE * len(messages) or any(len(label) > _LONGEST for label in labels):
        return 0
    speaks = any(OF_SNAPSHOT.search(label) or OF_UPDATE.search(label) for label in labels)
    if len(labels) == counts.total() and not speaks:  # a different value in each message
        return 0
    gain = _compute_purity(messages, path) - _compute_purity(messages, None)
    if len(labels) == 1 and gain <= 0 and not speaks:
        return 0
    depth = path.count(".")
    return (2 + known / len(KINDS) if known else 0) + 2 * speaks * bool(known) + 3 * max(0.0, gain) - depth / 4


def _compute_purity(messages: Sequence[Sampled], path: str | None) -> float:
    """Returns the share of messages that have the most frequent form among those of the same value at the path."""
    groups: defaultdict[Any, Counter[frozenset[str]]] = defaultdict(Counter)
    for one in messages:
        label = one.scalars.get(path) if path else None
        groups[label if isinstance(label, str) else None][_describe_form(one)] += 1
    return sum(max(forms.values()) for forms in groups.values()) / max(1, len(messages))


def _describe_form(one: Sampled) -> frozenset[str]:
    return frozenset([*one.scalars, *(source.path for source in one.sources)])


def _group_by_arrays(messages: Sequence[Sampled]) -> list[KindGroup]:
    """Groups messages that share names of arrays. Objects and arrays are never of the same kind."""
    linked: dict[tuple[type, str], tuple[type, str]] = {}

    def root(name: tuple[type, str]) -> tuple[type, str]:
        while linked.setdefault(name, name) != name:
            name = linked[name]
        return name

    for one in messages:
        names = [(type(one.value), source.name) for source in one.sources]
        for name in names[1:]:
            linked[root(name)] = root(names[0])
    groups: dict[Any, KindGroup] = {}
    for one in messages:
        first = next(((type(one.value), source.name) for source in one.sources), (type(one.value), None))
        label = root(first) if first[1] is not None else first
        groups.setdefault(label, KindGroup({})).messages.append(one)
    found = sorted(groups.values(), key=lambda group: _find_common_array(group) is None or len(group.messages))
    if len(found) > 1:
        for group in found:
            group.when = _find_condition(group, found)
    return sorted(found, key=lambda group: not group.when)


def _find_common_array(group: KindGroup) -> str | None:
    """Returns the path of an array that all messages of a kind have, without its `[*]`; None if there is none."""
    paths = [{source.path for source in one.sources if source.name} for one in group.messages]
    common = sorted(set.intersection(*paths)) if paths else []
    return common[0].removesuffix("[*]") if common else None


def _find_condition(group: KindGroup, groups: Sequence[KindGroup]) -> dict[str, Any]:
    """Returns a condition that only messages of this kind meet; empty if none is known."""
    own = type(group.messages[0].value)
    same = [one for one in groups if one is not group and isinstance(one.messages[0].value, own)]
    if not same:
        return {"body": "array" if own is list else "object"}
    path = _find_common_array(group)
    return {} if path is None else {path: "present"}
