"""Notes of stream time: what is looked up is what was so before the batch, though the batch has been noted already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.errors import LakeError
from sessionlake.integrity import stream_times
from sessionlake.integrity.clock import BEGINNING, PartitionStreamTime
from sessionlake.integrity.cursor import NO_TIME
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds
from sessionlake.protocol.chunk import decode_ipc, encode_ipc
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.schemas import PartitionMessageCounts, ShardReport
from sessionlake.silver.stream_times import StreamTimesLog, open_stored_stream_times, require_continued_stream_times

NAMES = [("t", 0), ("t", 1), ("t", 11), ("u", 1)]
NOTHING = (NO_TIME, BEGINNING)
BATCHES = st.lists(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3), max_size=4), max_size=12)


def looked_up(times: object, name: tuple[str, int], first: int) -> tuple[int, int]:
    time, offset = times.read_stream_times_before([name], np.array([first]))
    return int(time[0]), int(offset[0])


@given(BATCHES, st.integers(0, 9))
def test_a_batch_that_is_made_once_more_finds_what_was_before_it(batches: list[dict], recent: int) -> None:
    """A batch is how many messages each topic-partition has in it, or none, where it was silent."""
    times, ends = StreamTimesAtBatchEnds(), dict.fromkeys(NAMES, NOTHING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_times, "_MAX_RECENT_NOTES", recent)
        for batch in batches:
            before = dict(ends)
            for name, count in batch.items():
                time, offset = ends[name]
                if count:
                    ends[name] = 100 * (offset + count) + max(time, 0), offset + count
                elif offset != BEGINNING:
                    ends[name] = time + 10_000, offset
            for _ in range(2):  # once more, though it is noted
                for name in batch:
                    for first in range(before[name][1] + 1, ends[name][1] + 1):  # as whichever task sees it
                        assert looked_up(times, name, first) == before[name]
                times = times.add_stream_times(
                    PartitionStreamTime(*name, *ends[name]) for name in batch if ends[name] != NOTHING
                )
    names = [name for name in NAMES if ends[name] != NOTHING]
    time, offset = times.read_stream_times_before(names, np.array([ends[name][1] + 1 for name in names], np.int64))
    assert [*zip(time.tolist(), offset.tolist(), strict=True)] == [ends[name] for name in names]
    assert times.settled.num_rows <= 2 * len(NAMES)


def test_notes_of_very_many_topic_partitions_are_not_written_again_with_every_batch() -> None:
    many = [PartitionStreamTime("t", number, 1, 1) for number in range(100_000)]
    times = StreamTimesAtBatchEnds().add_stream_times(many)
    after = times.add_stream_times(PartitionStreamTime("t", number, 2, 2) for number in range(6_000))
    assert after.settled is times.settled
    assert (
        after.add_stream_times(PartitionStreamTime("t", number, 3, 3) for number in range(6_000)).recent.num_rows == 0
    )


# -- beside a checkpoint


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


def begin(settings: Settings, **ends: int) -> StreamTimesLog:
    """Without Spark: whatever would be looked up in bronze fails."""
    return StreamTimesLog.open_log(None, settings, "silver", {(topic, 0): end for topic, end in ends.items()})


def took_in(topic: str, last: int, time: int, since: int = BEGINNING) -> PartitionMessageCounts:
    return PartitionMessageCounts(topic, 0, since + 1, last, last - since, previous_offset=since, stream_time=time)


def test_a_worker_finds_what_the_driver_noted_after_each_batch(settings: Settings) -> None:
    log, stored = begin(settings), open_stored_stream_times(settings, "silver")
    log.add_batch_notes(
        [took_in("a", 4, 40), took_in("b", 2, 20), PartitionMessageCounts("c", 0, -1, -1, 0, applied=1, held=-1)], []
    )
    log.add_batch_notes([took_in("a", 9, 90, since=4)], [])
    assert [looked_up(stored, ("a", 0), first) for first in (4, 5, 9, 10)] == [NOTHING, (40, 4), (40, 4), (90, 9)]
    assert looked_up(stored, ("b", 0), 3) == (20, 2)
    assert looked_up(stored, ("c", 0), 3) == NOTHING


def test_a_stream_starts_from_where_the_ledger_ends_whatever_was_noted_behind_that(settings: Settings) -> None:
    log = begin(settings)
    for number in range(1, 4):
        log.add_batch_notes([took_in("a", number, 10 * number, since=number - 1)], [])
    begin(settings, a=2)  # the last batch is made once more
    assert looked_up(open_stored_stream_times(settings, "silver"), ("a", 0), 99) == (20, 2)


def test_a_silence_is_noted_behind_the_messages_before_it(settings: Settings) -> None:
    log, stored = begin(settings), open_stored_stream_times(settings, "silver")
    log.add_batch_notes([took_in("a", 4, 40), took_in("b", 2, 20)], [])
    silences = [
        PartitionStreamTime("a", 0, 900, 4),
        PartitionStreamTime("a", 0, 700, 4),
        PartitionStreamTime("b", 0, 500, 2),
    ]
    log.add_batch_notes([took_in("b", 3, 600, since=2)], [ShardReport([], {}), ShardReport([], {}, silences=silences)])
    assert (looked_up(stored, ("a", 0), 5), looked_up(stored, ("b", 0), 4)) == ((900, 4), (600, 3))


@pytest.mark.parametrize("loss", ["missing", "damaged", "of another format"])
def test_notes_that_cannot_be_read_are_none(settings: Settings, loss: str) -> None:
    begin(settings).add_batch_notes([took_in("a", 4, 40)], [])
    for file in Path(open_stored_stream_times(settings, "silver").folder).iterdir():
        if loss == "missing":
            file.unlink()
        elif loss == "damaged":
            file.write_bytes(file.read_bytes()[:30])
        else:
            found = decode_ipc(file.read_bytes()).replace_schema_metadata({"format": "sessionlake.stream_times/9"})
            file.write_bytes(encode_ipc(found))
    assert looked_up(open_stored_stream_times(settings, "silver"), ("a", 0), 9) == NOTHING
    with pytest.raises(AttributeError):  # it asks bronze
        begin(settings, a=4)


@pytest.mark.parametrize(("since", "ends"), [(BEGINNING, 4), (3, 4), (4, BEGINNING)])
def test_a_batch_that_does_not_go_on_where_the_ledger_ends_is_refused(since: int, ends: int) -> None:
    whole = [took_in("a", 9, 90, since=4), PartitionMessageCounts("c", 0, -1, -1, 0, applied=1, held=-1)]
    require_continued_stream_times("silver", whole, {("a", 0): 4, ("c", 0): 7})
    with pytest.raises(LakeError, match=rf"topic a, partition 0: .* up to offset {since}, .* after offset {ends}\."):
        require_continued_stream_times("silver", [took_in("a", 9, 90, since=since)], {("a", 0): ends})
