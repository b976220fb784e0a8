"""The ledger's offset check: nothing skipped, nothing twice."""

from __future__ import annotations

import pytest

from sessionlake.errors import OffsetHoleError
from sessionlake.ledger.entries import OffsetRange, hash_settings_of_layers
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.settings.model import CaptureSettings, Settings


def span(first: int, last: int, messages: int | None = None, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, first, last, last - first + 1 if messages is None else messages)


def check(log: OffsetLog, *ranges: OffsetRange, allow_gaps: bool = False) -> None:
    log.require_consecutive_ranges(ranges, allow_gaps=allow_gaps, layer="silver")


def test_a_range_counts_the_offsets_without_a_message() -> None:
    assert span(5, 9, 3).missing_messages == 2


def test_a_first_range_may_start_anywhere() -> None:
    check(OffsetLog(), span(17, 20))


def test_a_range_that_goes_on_where_the_last_ended_is_fine() -> None:
    check(OffsetLog({("t", 0): 16}), span(17, 20))


def test_a_range_one_offset_too_late_is_a_hole() -> None:
    with pytest.raises(OffsetHoleError, match=r"topic t, partition 0: offsets 17 to 17 are missing"):
        check(OffsetLog({("t", 0): 16}), span(18, 20))


def test_a_range_that_begins_at_the_last_offset_is_a_repetition() -> None:
    with pytest.raises(OffsetHoleError, match=r"starts at offset 16, but offsets up to 16 were read before"):
        check(OffsetLog({("t", 0): 16}), span(16, 20))


def test_a_message_missing_inside_a_range_is_a_hole() -> None:
    with pytest.raises(OffsetHoleError, match=r"of the offsets 17 to 20, 1 are missing"):
        check(OffsetLog({("t", 0): 16}), span(17, 20, 3))


def test_more_messages_than_offsets_is_an_error() -> None:
    with pytest.raises(OffsetHoleError, match="there are 5 messages at the offsets 17 to 20"):
        check(OffsetLog(), span(17, 20, 5))


def test_more_messages_than_offsets_is_an_error_even_where_gaps_are_allowed() -> None:
    with pytest.raises(OffsetHoleError):
        check(OffsetLog(), span(17, 20, 5), allow_gaps=True)


def test_allowed_gaps_may_lie_before_and_inside_a_range() -> None:
    check(OffsetLog({("t", 0): 16}), span(18, 20, 1), allow_gaps=True)


def test_a_repetition_is_an_error_even_where_gaps_are_allowed() -> None:
    with pytest.raises(OffsetHoleError, match="were read before"):
        check(OffsetLog({("t", 0): 16}), span(10, 20), allow_gaps=True)


def test_partitions_are_checked_each_for_itself() -> None:
    log = OffsetLog({("t", 0): 16})
    check(log, span(0, 3, partition=1), span(17, 18))


def test_an_advanced_log_expects_what_comes_after() -> None:
    log = OffsetLog()
    log.record_committed_ranges([span(0, 3)])
    check(log, span(4, 4))
    with pytest.raises(OffsetHoleError):
        check(log, span(3, 4))


def test_the_fingerprint_changes_with_what_decides_results_and_only_then() -> None:
    plain = Settings()
    assert hash_settings_of_layers(plain) == hash_settings_of_layers(Settings(silver={"shards": 8}))
    assert hash_settings_of_layers(plain) != hash_settings_of_layers(
        Settings(capture=CaptureSettings(integrity="order"))
    )
