"""Bronze against Kafka: which offsets both should have, and every way in which their messages can differ."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.bronze.compare import FIELDS, OFFSET_COLUMNS, MessageComparison, MessageDifference, compare_messages
from sessionlake.bronze.overlap import KafkaBronzeOverlap, find_offsets_in_kafka_and_bronze
from sessionlake.bronze.topic_rules import KafkaTopic
from sessionlake.bronze.verify import BronzeVerification, _exclude_messages_removed_by_retention
from sessionlake.cli.verify_bronze import describe_bronze_comparison
from sessionlake.delta.storage.offset_ranges import slice_ranges
from sessionlake.ledger.progress import LayerReadOffsets
from sessionlake.ledger.retained import BronzePartitionStart
from sessionlake.ledger.topics import PartitionOffsets, TopicGeneration, TopicState

NOW = datetime(2024, 1, 10, tzinfo=UTC)
NEVER = 2**63 - 1
ENTIRE = {("t", 0): 0, ("t", 1): 0, ("u", 0): 0}
Row = dict[str, Any]


def message(topic: str, partition: int, offset: int, **changed: int) -> Row:
    """A message that has another hash in each field, and others than any other message."""
    hashes = {name: crc32(f"{topic} {partition} {offset} {name}".encode()) for name in FIELDS}
    return {"topic": topic, "partition": partition, "offset": offset} | hashes | changed


KAFKA = [message(*place, offset) for place in ENTIRE for offset in range(4)]


def table(rows: list[Row]) -> pa.Table:
    types = [pa.string(), pa.int32(), pa.int64(), *(pa.int64() for _ in FIELDS)]
    return pa.Table.from_pylist(rows, pa.schema(list(zip((*OFFSET_COLUMNS, *FIELDS), types, strict=True))))


def comparison(bronze: list[Row], complete_from: dict[tuple[str, int], int] = ENTIRE) -> MessageComparison:
    return compare_messages(table(KAFKA), table(bronze), complete_from)


def others(topic: str, partition: int, offset: int) -> list[Row]:
    """All messages but one."""
    return [row for row in KAFKA if tuple(row[name] for name in OFFSET_COLUMNS) != (topic, partition, offset)]


def test_the_same_messages_in_any_order_are_exact():
    assert comparison(KAFKA[::-1]) == MessageComparison(12, 0, None)
    assert compare_messages(table([]), table([]), {}) == MessageComparison(0, 0, None)


@pytest.mark.parametrize("field", FIELDS)
def test_another_hash_in_any_field_is_named(field):
    found = comparison([*others("t", 1, 2), message("t", 1, 2, **{field: 7})])
    assert found == MessageComparison(12, 1, MessageDifference("t", 1, 2, f"differs from Kafka's in {field}"))


def test_all_fields_that_differ_are_named():
    found = comparison([*others("t", 1, 2), message("t", 1, 2, key=7, headers=8)])
    assert found.first_difference == MessageDifference("t", 1, 2, "differs from Kafka's in key, headers")


def test_a_message_that_bronze_lacks_is_named():
    found = comparison(others("u", 0, 0))
    assert found == MessageComparison(12, 1, MessageDifference("u", 0, 0, "is in Kafka and not in bronze"))


def test_a_message_that_bronze_has_twice_is_named_whatever_the_second_holds():
    found = comparison([*KAFKA, message("t", 0, 3)])
    assert found == MessageComparison(12, 1, MessageDifference("t", 0, 3, "is in bronze 2 times"))
    assert comparison([*KAFKA, message("t", 0, 3, value=7)]) == found


def test_a_message_that_only_bronze_has_is_named():
    found = comparison([*KAFKA, message("t", 1, 9)])
    assert (found.messages, found.different) == (13, 1)
    assert str(found.first_difference).startswith("topic t, partition 1, offset 9: is in bronze and not in Kafka")


def test_what_only_bronze_has_is_left_out_before_the_offset_from_which_on_kafka_is_complete():
    bronze = [*KAFKA, message("t", 1, 9)]
    assert comparison(bronze, ENTIRE | {("t", 1): 10}) == MessageComparison(12, 0, None)
    assert comparison(bronze, ENTIRE | {("t", 1): 9}).different == 1
    # What Kafka was seen to hold there is compared all the same.
    assert comparison(others("t", 1, 2), dict.fromkeys(ENTIRE, NEVER)).different == 1


@given(st.lists(st.sampled_from(range(len(KAFKA) + 4)), max_size=20), st.sets(st.sampled_from(range(len(KAFKA)))))
def test_exactly_the_messages_that_are_not_there_once_as_they_are_differ(chosen, changed):
    """Bronze is any choice of Kafka's messages and of some more, with repetitions, of which some are changed."""
    every = [*KAFKA, *(message("t", 0, offset) for offset in range(4, 8))]
    bronze = [every[n] | ({"value": 7} if n in changed else {}) for n in chosen]
    wrong = {n for n in range(len(KAFKA)) if chosen.count(n) != 1 or n in changed}
    wrong |= {n for n in chosen if n >= len(KAFKA)}
    first = min((tuple(every[n][name] for name in OFFSET_COLUMNS) for n in wrong), default=None)
    found = comparison(bronze)
    assert (found.messages, found.different) == (len({*range(len(KAFKA)), *chosen}), len(wrong))
    assert first == (
        found.first_difference
        and (found.first_difference.topic, found.first_difference.partition, found.first_difference.offset)
    )


def test_slices_add_up_to_the_first_difference_of_all():
    late, early = MessageDifference("t", 0, 9, "…"), MessageDifference("t", 0, 3, "…")
    parts = [MessageComparison(5, 0, None), MessageComparison(5, 2, late), MessageComparison(5, 1, early)]
    assert sum(parts, MessageComparison()) == MessageComparison(15, 3, early)


def topic(**changed: Any) -> TopicGeneration:
    """A topic `t` with id X, of which bronze has read offsets 0 to 9 of partition 0."""
    return replace(
        TopicGeneration("t", 0, TopicState.ACTIVE, "X", NOW, NOW, NOW, 0, (PartitionOffsets(0, 0, 10, 10),)),
        **changed,
    )


def both(
    known: TopicGeneration | None, kafka: tuple[int, int] | None, *, topic_id: str = "X", last: int = 9
) -> KafkaBronzeOverlap:
    """Of a topic of which bronze has offsets up to `last`, and Kafka those from the first to before the second."""
    return find_offsets_in_kafka_and_bronze(
        [LayerReadOffsets("bronze", "t", 0, 0, last, last + 1)],
        {} if known is None else {"t": known},
        {} if kafka is None else {"t": KafkaTopic(topic_id, {0: kafka})},
    )


@pytest.mark.parametrize(
    ("kafka", "expected"),
    [
        ((0, 10), KafkaBronzeOverlap({("t", 0): (0, 9)}, 0, (), ())),
        ((4, 12), KafkaBronzeOverlap({("t", 0): (4, 9)}, 2, (), ())),
        ((9, 10), KafkaBronzeOverlap({("t", 0): (9, 9)}, 0, (), ())),
        ((10, 10), KafkaBronzeOverlap({}, 0, (), ())),
        ((14, 20), KafkaBronzeOverlap({}, 6, (), ())),  # cut before it was read
        (None, KafkaBronzeOverlap({}, 0, ("t",), ())),
    ],
)
def test_compared_is_from_the_later_first_to_the_earlier_last_offset(kafka, expected):
    assert both(topic(), kafka) == both(None, kafka) == expected


def test_a_topic_that_was_made_again_is_compared_once_bronze_has_begun_to_read_it():
    assert both(topic(), (0, 10), topic_id="Y") == KafkaBronzeOverlap({}, 0, (), ("t",))
    next_one = topic(generation=1, topic_id="Y", offset_shift=10, partitions=(PartitionOffsets(0, 10, 10, 13),))
    assert both(next_one, (0, 3), topic_id="Y") == KafkaBronzeOverlap({}, 3, (), ())
    assert both(next_one, (0, 3), topic_id="Y", last=11) == KafkaBronzeOverlap({("t", 0): (10, 11)}, 1, (), ())


def test_a_forgotten_topic_is_compared_as_long_as_it_is_the_same():
    forgotten = topic(state=TopicState.FORGOTTEN)
    assert both(forgotten, (4, 12)) == KafkaBronzeOverlap({("t", 0): (4, 9)}, 2, (), ())
    assert both(forgotten, None) == KafkaBronzeOverlap({}, 0, ("t",), ())


def test_topics_and_partitions_that_bronze_has_not_begun_to_read_are_unread():
    found = find_offsets_in_kafka_and_bronze(
        [],
        {"t": topic(partitions=())},
        {"t": KafkaTopic("X", {0: (2, 5), 1: (0, 4)}), "new": KafkaTopic("Z", {0: (0, 1)})},
    )
    assert found == KafkaBronzeOverlap({}, 8, (), ())


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("tu"), st.integers(0, 3)), st.tuples(st.integers(0, 9), st.integers(0, 30))
    ),
    st.integers(1, 20),
)
def test_slices_hold_every_offset_once_and_in_order_and_are_of_a_size(spans, number):
    ranges = {place: (first, first + more) for place, (first, more) in spans.items()}
    parts = list(slice_ranges(ranges, number))
    for place, (first, last) in ranges.items():
        held = [offset for part in parts if place in part for offset in range(part[place][0], part[place][1] + 1)]
        assert held == list(range(first, last + 1))
        sizes = [part[place][1] + 1 - part[place][0] if place in part else 0 for part in parts]
        assert max(sizes) - min(sizes) <= 1
    assert len(parts) == number


def test_what_retention_has_removed_is_not_compared():
    taken = [LayerReadOffsets("bronze", "t", 0, 0, 9, 10), LayerReadOffsets("bronze", "t", 1, 4, 9, 6)]
    left = _exclude_messages_removed_by_retention(
        taken, {("t", 0): BronzePartitionStart(6, NOW), ("t", 1): BronzePartitionStart(2, NOW)}
    )
    seen = {"t": KafkaTopic("id", {0: (5, 12), 1: (0, 10)})}
    found = find_offsets_in_kafka_and_bronze(left, {}, seen)
    assert (found.ranges, found.unread) == ({("t", 0): (7, 9), ("t", 1): (4, 9)}, 2)


def test_the_answer_says_what_was_compared_and_what_could_not_be():
    exact = BronzeVerification(MessageComparison(12, 0, None), KafkaBronzeOverlap({("t", 0): (0, 11)}, 0, (), ()), 0)
    assert list(describe_bronze_comparison(exact)) == ["exact: 12 messages of 1 topic-partitions, as Kafka holds them"]
    wrong = BronzeVerification(
        MessageComparison(12, 2, MessageDifference("t", 0, 3, "is …")),
        KafkaBronzeOverlap({("t", 0): (0, 11)}, 3, ("a", "b"), ("c",)),
        5,
    )
    assert list(describe_bronze_comparison(wrong)) == [
        "2 of 12 messages differ from Kafka's; the first difference:\n  topic t, partition 0, offset 3: is …",
        "not compared: 5 messages in bronze that Kafka no longer holds",
        "  of topics that were deleted: a, b",
        "  of topics that were recreated, and not read since: c",
        "not compared: 3 offsets in Kafka that bronze has not read",
    ]
    cut = BronzeVerification(
        MessageComparison(12, 0, None), KafkaBronzeOverlap({("t", 0): (3, 14)}, 0, (), ()), 0, gone=3
    )
    assert list(describe_bronze_comparison(cut))[1:] == [
        "not compared: 3 messages that maintain.retention has removed from bronze"
    ]
    nothing = BronzeVerification(MessageComparison(0, 0, None), KafkaBronzeOverlap({}, 0, ("a",), ()), 5)
    assert (
        next(describe_bronze_comparison(nothing))
        == "nothing to compare: Kafka no longer holds any message that bronze has"
    )
