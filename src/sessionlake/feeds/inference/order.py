"""Finds the fields that name the session, give the order of messages, and give their time."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise, product
from typing import Any

from sessionlake.feeds.inference.sample import SampledMessage, get_field_name
from sessionlake.feeds.inference.types import find_unit_of_epoch_time, is_iso_time_with_zone
from sessionlake.feeds.inference.words import (
    KEYS,
    LOOSE_SESSIONS,
    SEQS,
    SESSIONS,
    TIMES,
    is_name_of_identifier,
    is_name_of_time,
    rank_field_name,
)

_DIGITS = re.compile(r"-?(0|[1-9]\d{0,18})")
_NUMBER = re.compile(r"\d{9,19}(\.\d{1,9})?")
_OF_FIRST = re.compile(r"(?i:first|start|begin)|^U$")
"""Names of the first seq that a message covers, even if each message of the sample covers one."""
_USUAL = 0.9
"""Share of neighbouring messages that must fit an order."""
_FEWEST = 2
"""Fewest neighbouring messages that can show an order."""
_MANY = 20
"""With so many neighbouring messages, a number that rises by one gives the order whatever its name is."""
_LONGEST_NAME = 100
_MANY_ROWS = 2
"""Fewest rows of a table, on average, if a field with a loose name is the session."""
_FEW = 4
"""With fewer messages, a name decides alone, because no value can repeat."""
BY_PLACE = ["kafka.topic", "kafka.partition"]


@dataclass(frozen=True)
class ProposedSetting:
    """A proposed setting, and fields that could be used instead.

    Attributes:
        setting: The setting, as the configuration has it; None to leave it out.
        others: Paths of the other fields, best first.
        why: What the sample shows, in a few words.
    """

    setting: Any
    others: tuple[str, ...] = ()
    why: str = ""


def choose_session_setting(
    messages: Sequence[SampledMessage], used_paths: Collection[str], row_arrays: Collection[str] = ()
) -> ProposedSetting:
    """Chooses the path of the session id.

    Args:
        messages: The messages that have rows.
        used_paths: Paths of the fields that say what kind a message is. They are never the session.
        row_arrays: Paths of the arrays that have the rows; none if each message is a row.
    """
    values: defaultdict[str, Counter[Any]] = defaultdict(Counter)
    for one in messages:
        for path, value in one.scalars.items():
            if _can_be_session_id(value) and path not in used_paths:
                values[path][value] += 1
    identified = max(
        (len(counts) for path, counts in values.items() if is_name_of_identifier(get_field_name(path))), default=0
    )
    scores = {
        path: _score_as_session_field(path, counts, len(messages), len(messages) if row_arrays else identified)
        for path, counts in values.items()
        if counts.total() == len(messages)
    }
    best = sorted((path for path, score in scores.items() if score > 0), key=lambda path: (-scores[path], len(path)))
    if best:
        found = len(values[best[0]])
        return ProposedSetting(best[0], tuple(best[1:4]), f"{found:,} different values in {len(messages):,} messages")
    if (in_rows := _find_session_field_in_rows(messages, row_arrays)) is not None:
        return ProposedSetting(in_rows, why="all rows of a message have the same value")
    keys = Counter(one.record.key for one in messages)
    if None not in keys and len(keys) * 2 <= len(messages):
        return ProposedSetting("kafka.key", why=f"{len(keys):,} different keys in {len(messages):,} messages")
    return ProposedSetting(BY_PLACE, why="no field repeats as the name of a table does")


def _can_be_session_id(value: Any) -> bool:
    return type(value) is int or (
        isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and not is_iso_time_with_zone(value)
    )


def _find_session_field_in_rows(messages: Sequence[SampledMessage], row_arrays: Collection[str]) -> str | None:
    """Returns the path of a field of the first row that all rows of a message have alike; None if there is none."""
    rows = [[source.elements for source in one.sources if source.path in row_arrays] for one in messages]
    if len({*row_arrays}) != 1 or any(len(found) != 1 or not found[0] for found in rows):
        return None
    elements = [found[0] for found in rows]
    if not all(isinstance(item, dict) for items in elements for item in items):
        return None
    for name in sorted({*elements[0][0]}, key=lambda name: -rank_field_name(name, SESSIONS)):
        values = [
            {item.get(name) if _can_be_session_id(item.get(name)) else None for item in items} for items in elements
        ]
        is_alike = all(len(found) == 1 and None not in found for found in values)
        if rank_field_name(name, SESSIONS) and is_alike and any(len(items) > 1 for items in elements):
            return f"{next(iter(row_arrays)).removesuffix('[*]')}[0].{name}"
    return None


def _score_as_session_field(path: str, value_counts: Counter[Any], message_count: int, row_count: int) -> float:
    """Returns how likely a field is the session id, from 0 (it cannot be) to 3.

    Args:
        path: Path of the field.
        value_counts: How many messages have each value of the field.
        message_count: Number of messages in the sample.
        row_count: Estimated number of rows in all tables of the sample.
    """
    known = rank_field_name(get_field_name(path), SESSIONS) / len(SESSIONS)
    repeats = len(value_counts) * 2 <= message_count
    in_array = path.startswith("[") and isinstance(next(iter(value_counts)), str) and len(value_counts) > 1 and repeats
    if known and (repeats or message_count < _FEW or len(value_counts) < message_count == row_count):
        return 2 + known - path.count(".") / 20
    if (
        repeats
        and 1 < len(value_counts) * _MANY_ROWS <= row_count
        and (loose := rank_field_name(get_field_name(path), LOOSE_SESSIONS))
    ):
        return 1 + loose / len(LOOSE_SESSIONS)
    return 1.0 if in_array else 0


def choose_time_setting(messages: Sequence[SampledMessage]) -> ProposedSetting:
    """Proposes a value for the setting `time`; the value is None if no field of the messages is a time."""
    values: defaultdict[str, list[Any]] = defaultdict(list)
    for one in messages:
        for path, value in one.scalars.items():
            values[path].append(value)
    found = {}
    for path, given in values.items():
        present = [value for value in given if value is not None]
        setting = _build_time_setting(path, present)
        if setting is not None:
            is_always = len(present) == len(messages)
            score = (is_always, rank_field_name(get_field_name(path), TIMES), -path.count("."), len(present))
            found[path] = (score, setting if is_always else setting | {"else": "kafka.timestamp"})
    if not found:
        return ProposedSetting(None)
    best = sorted(found, key=lambda path: found[path][0], reverse=True)
    return ProposedSetting(found[best[0]][1], tuple(best[1:4]))


def _build_time_setting(path: str, values: Sequence[Any]) -> dict[str, Any] | None:
    """Returns the setting `time` for the field at a path; None if its values in the sample are no times."""
    if not values:
        return None
    if all(map(is_iso_time_with_zone, values)):
        return {"path": path, "from": "iso"}
    in_text = all(isinstance(value, str) and _NUMBER.fullmatch(value) for value in values)
    if not in_text and not all(type(value) in (int, Decimal) for value in values):
        return None
    units = {find_unit_of_epoch_time(Decimal(value)) for value in values}
    unit = units.pop() if len(units) == 1 else None
    if unit is None or not (is_name_of_time(get_field_name(path)) or rank_field_name(get_field_name(path), TIMES)):
        return None
    how = {"from": "text"} if in_text else {}
    return {"path": path, **({} if unit == "ms" else {"unit": unit}), **how}


def choose_order_setting(
    messages: Sequence[SampledMessage],
    all_messages: Sequence[SampledMessage],
    get_session: Callable[[SampledMessage], Any],
    is_snapshot: Callable[[SampledMessage], bool],
    *,
    is_split: bool = False,
) -> ProposedSetting:
    """Chooses the setting `order`; None if no field orders the messages, so that they apply as they arrive.

    Args:
        messages: The messages that have rows.
        all_messages: All messages, also those that are ignored. Of these, some may have no numbers, such as replies.
        get_session: Returns the session of a message.
        is_snapshot: Returns True for a message that is a snapshot. It need not follow the message before it.
        is_split: True if `messages` are parts of messages, and `all_messages` are the messages themselves.
    """
    by_session: defaultdict[Any, list[tuple[bool, dict[str, int]]]] = defaultdict(list)
    for one in messages:
        by_session[get_session(one)].append((is_snapshot(one), _find_integers_by_path(one)))
    sequences = list(by_session.values())
    paths = _find_common_paths([one for sequence in sequences for _, one in sequence])
    pairs = [(one, two) for sequence in sequences for (_, one), (restarts, two) in pairwise(sequence) if not restarts]
    if len(pairs) < _FEWEST or not paths:
        return ProposedSetting(None)
    links = _find_common_paths([two for _, two in pairs])
    moving = [
        path
        for path in paths
        if _compute_share_of_fitting_pairs(pairs, lambda one, two, path=path: two[path] > one[path]) >= _USUAL
    ]
    found = (
        _propose_order_by_link_to_previous(pairs, links, moving)
        or _propose_order_by_counter(pairs, moving)
        or _propose_order_by_rising_number(pairs, moving)
    )
    numbered = [one for one in all_messages if any(path in one.scalars for path in paths)]
    chained = _propose_order_across_sessions(all_messages) or _propose_order_across_sessions(numbered)
    # A number of the message is the same in all of its parts, so it counts messages and not those of a session.
    is_of_message = is_split and found is not None and not found["seq"].startswith(".")
    if found is None or (chained is not None and ("rising" in found or is_of_message)):
        found = chained or found
    if found is None:
        return ProposedSetting(None)
    return ProposedSetting(found, tuple(path for path in moving if path not in found.values())[:3])


def _find_integers_by_path(message: SampledMessage) -> dict[str, int]:
    """Returns the whole numbers of a message by path, also those that are written as text."""
    found = {}
    for path, value in message.scalars.items():
        if type(value) is int:
            found[path] = value
        elif isinstance(value, str) and _DIGITS.fullmatch(value):
            found[path] = int(value)
    return found


def _find_common_paths(integers_of_messages: Sequence[dict[str, int]]) -> list[str]:
    """Returns the paths that all messages have."""
    paths = set(integers_of_messages[0]).intersection(*integers_of_messages) if integers_of_messages else set()
    return [path for path in integers_of_messages[0] if path in paths] if integers_of_messages else []


def _compute_share_of_fitting_pairs(
    pairs: Sequence[tuple[dict[str, int], dict[str, int]]], fits: Callable[..., bool]
) -> float:
    """Returns the share of pairs of successive messages for which `fits` is true."""
    return sum(fits(one, two) for one, two in pairs) / max(1, len(pairs))


def _propose_order_by_link_to_previous(
    pairs: Any, paths: Sequence[str], rising_paths: Sequence[str]
) -> dict[str, Any] | None:
    """Returns the order in which a message names the seq of the one before, or the first seq that it covers.

    Args:
        pairs: For successive messages, the whole numbers of both by path.
        paths: Paths of numbers that all messages but snapshots have.
        rising_paths: Paths of numbers that all messages have and that rise.
    """
    for last, other in product(rising_paths, paths):
        if last == other:
            continue
        if _compute_share_of_fitting_pairs(pairs, lambda one, two, a=last, b=other: two[b] == one[a]) >= _USUAL:
            return {"seq": last, "after": other}
    for last, other in product(rising_paths, paths):
        if last == other:
            continue
        follows = _compute_share_of_fitting_pairs(pairs, lambda one, two, a=last, b=other: two[b] == one[a] + 1)
        several = any(two[other] < two[last] for _, two in pairs) or _OF_FIRST.search(get_field_name(other))
        if follows >= _USUAL and several:
            return {"seq": last, "first": other}
    return None


def _propose_order_by_counter(pairs: Any, rising_paths: Sequence[str]) -> dict[str, Any] | None:
    """Returns the order by a number that rises by one from each message to the next; None if there is none."""
    steps = [
        path
        for path in rising_paths
        if _compute_share_of_fitting_pairs(pairs, lambda one, two, p=path: two[p] == one[p] + 1) >= _USUAL
        and (
            rank_field_name(get_field_name(path), SEQS)
            or (len(pairs) >= _MANY and not is_name_of_time(get_field_name(path)))
        )
    ]
    best = max(steps, key=lambda path: rank_field_name(get_field_name(path), SEQS), default=None)
    return None if best is None else {"seq": best}


def _propose_order_by_rising_number(pairs: Any, rising_paths: Sequence[str]) -> dict[str, Any] | None:
    """Returns the order by the number with the best name that always rises; None if none has a usual name."""
    rising = [
        path
        for path in rising_paths
        if _compute_share_of_fitting_pairs(pairs, lambda one, two, p=path: two[p] > one[p]) == 1
    ]
    best = max(rising, key=lambda path: rank_field_name(get_field_name(path), SEQS), default=None)
    if best is None or not rank_field_name(get_field_name(best), SEQS):
        return None
    return {"seq": best, "rising": True}


def _propose_order_across_sessions(all_messages: Sequence[SampledMessage]) -> dict[str, Any] | None:
    """Returns the order of a number that links all messages, or rises by one over them, whatever their session.

    A number without a usual name must do so in every message, and in many of them.
    """
    integers = [_find_integers_by_path(one) for one in all_messages]
    pairs = list(pairwise(integers))
    if len(pairs) < _FEWEST:
        return None
    paths = _find_common_paths(integers)
    named = [path for path in paths if rank_field_name(get_field_name(path), SEQS)]
    counted = [path for path in paths if all(two[path] == one[path] + 1 for one, two in pairs)]
    counted = [path for path in counted if not rank_field_name(get_field_name(path), KEYS)]  # numbers of rows
    rising = [path for path in paths if all(two[path] > one[path] for one, two in pairs)]
    linked = _propose_order_by_link_to_previous(pairs, paths, rising) if len(pairs) >= _MANY else None
    found = _propose_order_by_counter(pairs, [*named, *counted])
    found = linked if found is None and linked is not None and "after" in linked else found
    return None if found is None else found | {"chain": "kafka.topic"}
