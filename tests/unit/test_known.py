"""A miss says what range is known."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sessionlake.history.missing import explain_unjudged_message, explain_unread_message
from sessionlake.ledger.progress import LayerReadOffsets
from sessionlake.settings.model import Settings

SPANS = [
    LayerReadOffsets("bronze", "capture.a", 0, 100, 4711, 4612),
    LayerReadOffsets("bronze", "capture.a", 1, 0, 9, 10),
    LayerReadOffsets("bronze", "capture.b", 0, 0, 9, 10),
    LayerReadOffsets("silver", "capture.a", 0, 100, 4000, 3901),
]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            ("capture.a", 0, 4712),
            "topic capture.a, partition 0: bronze holds offsets 100 to 4711; 4712 has not been read yet",
        ),
        (("capture.a", 0, 99), "bronze holds offsets 100 to 4711; Kafka had removed 99 before bronze started"),
        (("capture.a", 0, 200), "bronze holds offsets 100 to 4711, but none at 200: Kafka had no message there"),
        (
            ("capture.a", 2, 0),
            "partition 2: bronze holds no message of it; it holds partition 0 (offsets 100 to 4711), partition 1 (",
        ),
        (("capture.c", 0, 0), "topic capture.c: bronze holds no message of it; it knows capture.a, capture.b"),
        (("other", 0, 0), "bronze holds no message of it, and kafka.topic_pattern excludes it; it knows capture.a,"),
    ],
)
def test_a_message_that_bronze_lacks_is_reported_with_what_bronze_has(place, text):
    assert text in explain_unread_message(SPANS, Settings(), *place)


def test_an_empty_lake_is_reported_with_the_way_to_fill_it():
    assert "sessionlake run all --once" in explain_unread_message([], Settings(), "capture.a", 0, 0)


def test_of_many_topics_some_are_named_and_the_rest_counted():
    spans = [LayerReadOffsets("bronze", f"capture.{number:03}", 0, 0, 9, 10) for number in range(25)]
    text = explain_unread_message(spans, Settings(), "capture.x", 0, 0)
    assert text.endswith("capture.018, capture.019 and 5 more")


@pytest.mark.parametrize(("partition", "reach"), [(0, "judged offsets 100 to 4000"), (1, "judged none of it")])
def test_a_message_that_silver_has_not_reached_is_reported_with_how_far_it_is(partition, reach):
    text = explain_unjudged_message(SPANS, 12, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "capture.a", partition, 4500)
    assert text == (
        f"topic capture.a, partition {partition}: silver has {reach} so far; 4500 is in bronze "
        "(batch 12, committed 2026-01-02 03:04:05 UTC) and waits for `sessionlake run silver`"
    )
