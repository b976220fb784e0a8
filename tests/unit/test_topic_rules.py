"""What becomes of a topic: known rows, what Kafka says and the rule in, rows out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.bronze.topic_rules import KafkaTopic, TopicAbsenceCounts, TopicsTableUpdate, decide_topic_update
from sessionlake.errors import OffsetHoleError
from sessionlake.ledger.absent import AbsentOffsetFinder
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.topics import (
    PartitionOffsets,
    TopicGeneration,
    TopicState,
    find_offsets_between_generations,
    select_latest_generations,
)
from sessionlake.settings.model import OnTopicChange

NOW = datetime(2024, 1, 10, tzinfo=UTC)
WEEK = timedelta(days=7)
FAIL, FORGET, RESTART = OnTopicChange


def topic(*spans: tuple[int, int], **changed: Any) -> TopicGeneration:
    """A topic `t` with id X, read from first to next in each partition, with a message just now."""
    parts = tuple(PartitionOffsets(number, first, end, end) for number, (first, end) in enumerate(spans))
    return replace(TopicGeneration("t", 0, TopicState.ACTIVE, "X", NOW, NOW, NOW, 0, parts), **changed)


def seen(*spans: tuple[int, int], topic_id: str | None = "X") -> KafkaTopic:
    return KafkaTopic(topic_id, dict(enumerate(spans)))


def after(
    known: TopicGeneration | None, found: KafkaTopic | None, rule: OnTopicChange = FAIL, now: datetime = NOW
) -> TopicsTableUpdate:
    return decide_topic_update(
        {} if known is None else {"t": known},
        {} if found is None else {"t": found},
        rule=rule,
        now=now,
        inactive_after=WEEK,
    )


def states(decision: TopicsTableUpdate) -> list[tuple[int, str, int | None]]:
    return [(row.generation, str(row.state), row.lost) for row in decision.rows]


def test_a_topic_that_is_new_is_active_from_its_first_offset_on():
    (row,) = after(None, seen((5, 9))).rows
    assert (row.state, row.generation, row.topic_id) == (TopicState.ACTIVE, 0, "X")
    assert row.partitions == (PartitionOffsets(0, 5, 5, 9),)


def test_a_partition_that_is_new_joins_its_topic_and_nothing_is_decided():
    decision = after(topic((0, 4)), seen((0, 4), (0, 2)))
    assert decision.rows[0].partitions == (PartitionOffsets(0, 0, 4, 4), PartitionOffsets(1, 0, 0, 2))
    assert decision.refusals == ()


@pytest.mark.parametrize(
    ("found", "rule", "expected"),
    [
        (None, FAIL, [(0, "deleted", None)]),
        (None, FORGET, [(0, "forgotten", 0)]),
        (None, RESTART, [(0, "deleted", 0)]),
        (seen((0, 9), topic_id="Y"), FAIL, [(0, "recreated", None)]),
        (seen((0, 9), topic_id="Y"), FORGET, [(0, "recreated", 0), (1, "forgotten", 9)]),
        (seen((0, 9), topic_id="Y"), RESTART, [(0, "recreated", 0), (1, "active", None)]),
        (seen((0, 3)), FAIL, [(0, "recreated", None)]),
        (seen((0, 3)), RESTART, [(0, "recreated", 0), (1, "active", None)]),
        (seen((6, 9)), FAIL, [(0, "cut", None)]),
        (seen((6, 9)), FORGET, [(0, "forgotten", 5)]),
        (seen((6, 9)), RESTART, [(0, "cut", 2), (1, "active", None)]),
    ],
)
def test_the_rule_decides_what_becomes_of_a_topic_read_up_to_offset_3(found, rule, expected):
    decision = after(topic((0, 4)), found, rule)
    assert states(decision) == expected
    assert bool(decision.refusals) is (rule is FAIL)


def test_a_topic_cut_exactly_at_the_next_offset_has_lost_nothing():
    assert states(after(topic((0, 4)), seen((4, 4)))) == [(0, "active", None)]


def test_a_topic_made_again_is_reported_by_its_id_alone_even_with_the_same_offsets():
    assert states(after(topic((0, 4)), seen((0, 4), topic_id="Y"))) == [(0, "recreated", None)]


def test_where_brokers_know_no_ids_only_an_end_before_what_was_read_tells():
    unknown = topic((0, 4), topic_id=None)
    assert states(after(unknown, seen((0, 4), topic_id=None))) == [(0, "active", None)]
    assert states(after(unknown, seen((0, 3), topic_id=None))) == [(0, "recreated", None)]


def test_what_kafka_was_known_to_hold_beyond_the_last_read_is_counted_as_lost():
    unread = topic((0, 4), partitions=(PartitionOffsets(0, 0, 4, 10),))
    assert states(after(unread, None, FORGET)) == [(0, "forgotten", 6)]


def test_a_refusal_names_the_topic_what_happened_and_how_far_it_was_read():
    (text,) = after(topic((0, 4)), seen((6, 9))).refusals
    assert text == (
        "topic t was cut by Kafka's retention: offsets 4 to 5 of its partition 0 are gone; "
        "read of it: partition 0 up to offset 3"
    )


def test_what_was_refused_is_refused_again_until_the_rule_changes():
    refused = after(topic((0, 4)), seen((0, 9), topic_id="Y")).rows[0]
    assert after(refused, seen((0, 9), topic_id="Y")).refusals
    assert not after(refused, seen((0, 9), topic_id="Y"), RESTART).refusals


@pytest.mark.parametrize("rule", list(OnTopicChange))
def test_what_was_forgotten_stays_forgotten_whatever_the_rule(rule):
    forgotten = topic((0, 4), state=TopicState.FORGOTTEN, lost=5)
    assert states(after(forgotten, seen((0, 12)), rule)) == [(0, "forgotten", 5)]
    assert states(after(forgotten, None, rule)) == [(0, "forgotten", 5)]


def test_another_topic_of_a_forgotten_name_is_decided_again():
    forgotten = topic((0, 4), state=TopicState.FORGOTTEN)
    assert after(forgotten, seen((0, 2), topic_id="Y")).refusals
    assert states(after(forgotten, seen((0, 2), topic_id="Y"), RESTART)) == [(1, "active", None)]


def test_a_deleted_topic_that_is_seen_again_with_its_id_was_only_out_of_sight():
    assert states(after(topic((0, 4), state=TopicState.DELETED), seen((0, 6)))) == [(0, "active", None)]


@pytest.mark.parametrize(("before", "now"), [(None, None), (None, "X"), ("X", None)])
def test_a_deleted_topic_that_is_seen_again_without_an_id_may_be_another(before, now):
    gone = topic((0, 4), state=TopicState.DELETED, topic_id=before)
    assert after(gone, seen((0, 6), topic_id=now)).refusals
    assert states(after(gone, seen((0, 6), topic_id=now), RESTART)) == [(0, "recreated", 0), (1, "active", None)]


def test_what_was_recreated_is_refused_also_when_it_has_outgrown_the_old_one():
    refused = after(topic((0, 4), topic_id=None), seen((0, 3), topic_id=None)).rows[0]
    assert after(refused, seen((0, 9), topic_id=None)).refusals


@pytest.mark.parametrize(("age", "expected"), [(WEEK - timedelta(seconds=1), "active"), (WEEK, "inactive")])
def test_a_topic_without_a_message_for_a_week_is_inactive(age, expected):
    assert states(after(topic((0, 4)), seen((0, 4)), now=NOW + age)) == [(0, expected, None)]


def test_a_topic_that_never_had_a_message_is_inactive_a_week_after_it_was_first_seen():
    empty = topic((0, 0), last_message_at=None)
    assert states(after(empty, seen((0, 0)), now=NOW + WEEK)) == [(0, "inactive", None)]


def test_a_message_waiting_makes_an_inactive_topic_active_also_in_a_new_partition():
    quiet = topic((0, 4), state=TopicState.INACTIVE)
    assert states(after(quiet, seen((0, 5)), now=NOW + 9 * WEEK)) == [(0, "active", None)]
    assert states(after(quiet, seen((0, 4), (0, 1)), now=NOW + 9 * WEEK)) == [(0, "active", None)]


# Partitions of one incarnation: (first offset, messages there, how many of them are read before it ends).
INCARNATION = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)).map(lambda p: (p[0], p[1], min(p[1], p[2]))),
    min_size=1,
    max_size=3,
)


def read(row: TopicGeneration, incarnation: list[tuple[int, int, int]]) -> tuple[TopicGeneration, list[OffsetRange]]:
    """The topic after some of its messages were taken in, and the ranges that bronze books for that."""
    parts = tuple(replace(p, next_offset=p.first_offset + incarnation[p.partition][2]) for p in row.partitions)
    ranges = [
        OffsetRange("t", p.partition, p.first_offset, p.next_offset - 1, p.next_offset - p.first_offset)
        for p in parts
        if p.next_offset > p.first_offset
    ]
    return replace(row, partitions=parts), ranges


def histories(incarnations: list[list[tuple[int, int, int]]]) -> tuple[list[TopicGeneration], list[list[OffsetRange]]]:
    """A topic created anew again and again under `restart`: its rows, and what was booked in each generation."""
    rows: dict[int, TopicGeneration] = {}
    booked: list[list[OffsetRange]] = []
    for number, incarnation in enumerate(incarnations):
        known = select_latest_generations(rows.values()).get("t")
        found = seen(*((first, first + count) for first, count, _ in incarnation), topic_id=str(number))
        rows |= {row.generation: row for row in after(known, found, RESTART).rows}
        rows[number], ranges = read(rows[number], incarnation)
        booked.append(ranges)
    return list(rows.values()), booked


@given(st.lists(INCARNATION, min_size=1, max_size=5))
def test_a_later_generation_lies_beyond_every_offset_of_the_earlier_ones_in_any_partition(incarnations):
    rows, booked = histories(incarnations)
    assert [row.generation for row in rows] == list(range(len(incarnations)))
    highest = -1
    for ranges in booked:
        assert all(item.first > highest for item in ranges)
        highest = max([highest, *(item.last for item in ranges)])


@given(st.lists(INCARNATION, min_size=1, max_size=5), st.booleans())
def test_the_books_balance_over_generations_in_one_batch_each_or_one_for_all(incarnations, together):
    rows, booked = histories(incarnations)
    log = OffsetLog(absent=AbsentOffsetFinder(unused_offsets=find_offsets_between_generations(rows)))
    if together:
        booked = [[whole(booked, n) for n in range(3) if any(r.partition == n for ranges in booked for r in ranges)]]
    for ranges in booked:
        log.require_consecutive_ranges(ranges, allow_gaps=False, layer="silver")
        log.record_committed_ranges(ranges)


@given(st.lists(INCARNATION, min_size=1, max_size=5), st.data())
def test_a_batch_that_goes_missing_between_generations_is_still_a_hole(incarnations, data):
    rows, booked = histories(incarnations)
    ranges = [item for ranges in booked for item in ranges if item.partition == 0]
    if len(ranges) < 3:
        return
    lost = data.draw(st.integers(1, len(ranges) - 2))
    log = OffsetLog(absent=AbsentOffsetFinder(unused_offsets=find_offsets_between_generations(rows)))
    for item in ranges[:lost]:
        log.require_consecutive_ranges([item], allow_gaps=False, layer="silver")
        log.record_committed_ranges([item])
    with pytest.raises(OffsetHoleError):
        log.require_consecutive_ranges([ranges[lost + 1]], allow_gaps=False, layer="silver")


def whole(booked: list[list[OffsetRange]], partition: int) -> OffsetRange:
    """What a layer that folds all generations of a partition in one batch counts."""
    parts = [item for ranges in booked for item in ranges if item.partition == partition]
    return OffsetRange("t", partition, parts[0].first, parts[-1].last, sum(item.messages for item in parts))


def looks(*found: tuple[float, str]) -> TopicAbsenceCounts:
    """After looks that were answered at these times and had these topics missing."""
    absences = TopicAbsenceCounts()
    for at, missing in found:
        absences = absences.count_topics_missing_in_check(missing, at)
    return absences


@pytest.mark.parametrize(
    ("found", "deleted", "unconfirmed"),
    [
        ([(0, "")], "", ""),
        ([(0, "a")], "", "a"),
        ([(0, "a"), (3, "a"), (6, "a"), (9, "a"), (9.9, "a")], "", "a"),
        ([(0, "a"), (3, "a"), (6, "a"), (9, "a"), (10, "a")], "a", ""),
        ([(0, "a"), (3, "a"), (6, "a"), (100, "a")], "", "a"),  # four looks
        ([(0, "a"), (3, ""), (6, "a"), (7, "a"), (8, "a"), (9, "a"), (10, "a")], "", "a"),  # it was there
        ([(0, "a"), (3, "ab"), (6, "ab"), (9, "ab"), (12, "ab")], "a", "b"),
        ([(0, "ab"), (3, "ab"), (6, "b"), (9, "b"), (12, "b")], "b", ""),
    ],
)
def test_a_topic_counts_as_deleted_when_five_looks_in_a_row_over_ten_seconds_have_not_shown_it(
    found, deleted, unconfirmed
):
    absences = looks(*found)
    assert (absences.deleted_topics, absences.possibly_deleted_topics) == (set(deleted), set(unconfirmed))
