"""Old rows leave while layers run on: nobody misses what he needs, and whoever asks for what is gone is told so."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.commands.doctor import _as_booked
from sessionlake.commands.query import fetch
from sessionlake.commands.query_as_of import answer_as_of
from sessionlake.commands.rebuild import verify_silver
from sessionlake.commands.show import OutputFormat
from sessionlake.errors import LakeError, NotThereError, UsageError
from sessionlake.history.asof import find_session, table_as_of
from sessionlake.history.trace import trace
from sessionlake.lake.commit import append
from sessionlake.lake.names import CHANGES, CUTS, EVENTS, MESSAGES, PROGRESS, QUARANTINE, SNAPSHOT_INDEX, SNAPSHOTS
from sessionlake.lake.retained import retained
from sessionlake.lake.txn import Txn
from sessionlake.maintenance import Maintenance
from sessionlake.retention.cut import Removed
from sessionlake.silver.merge.sql_function import create_session_as_of
from sessionlake.silver.rebuild.replay import replay
from sessionlake.silver.stream_times import _of_bronze
from sessionlake.silver.tables.as_of import AsOf
from support.folding import truth_of
from support.lakes import assert_silver_is_the_truth
from support.retention import BATCHES, CUT, MINUTE, START, TOPIC, Aging

GONE = {CHANGES, CUTS, EVENTS, MESSAGES, PROGRESS, QUARANTINE, SNAPSHOT_INDEX, SNAPSHOTS}
FLOOR = 10
"""The offset behind which the changes of the session that goes on begin."""


class Cut(Aging):
    """The lake after three batches, two of which are old, and after one more."""

    def __init__(self, spark: Any, location: dict[str, Any]) -> None:
        super().__init__(spark, location)
        for _ in range(3):
            self.take_in()
        self.removed = self.cut(1, *(table for table in CUT if table != MESSAGES))
        self.said: list[str] = []
        self.verified = verify_silver(spark, self.settings, self.said.append)
        self.removed |= self.cut(1, MESSAGES)
        self.take_in()


@pytest.fixture(scope="module")
def cut(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Cut:
    return Cut(spark, {"home": tmp_path_factory.mktemp("aging") / "home"})


def test_streams_run_on_through_a_cut_and_what_is_left_is_the_truth(cut: Cut) -> None:
    assert {table: done.rows for table, done in cut.removed.items()} == {
        CHANGES: 13,
        PROGRESS: 2,
        SNAPSHOTS: 8,
        QUARANTINE: 1,
        EVENTS: 1,
        MESSAGES: 6,
    }
    assert cut.offsets() == list(range(6, len(cut.come)))  # the session that goes on is whole
    assert_silver_is_the_truth(cut.spark, cut.settings, cut.come, cut=GONE)
    said = [said for batch in BATCHES for said in batch]
    assert cut.points() == {(s.session, row, s.minute): (1, price) for s in said for row, price in s.rows}


def test_the_books_balance_and_a_row_that_is_lost_besides_is_missed(cut: Cut) -> None:
    assert _as_booked(cut.spark, cut.lake) == (
        "hold what the ledger says was written, less 21 that maintain.retention removed"
    )
    own = cut.lake.delta(cut.spark, MESSAGES)
    version = cut.lake.last_commit(cut.spark, MESSAGES).version
    own.delete("offset = 12")
    with pytest.raises(LakeError, match=r"holds 16 rows, the ledger says 23, less 6 that maintain.retention removed"):
        _as_booked(cut.spark, cut.lake)
    own.restoreToVersion(version)


def test_a_session_is_told_at_each_moment_from_its_last_old_table_on_and_refused_before(cut: Cut) -> None:
    reader = cut.reader
    session = find_session(reader, cut.settings, "long")
    for offset in range(6, len(cut.come)):
        if offset < FLOOR:
            with pytest.raises(LakeError, match=r"begins behind its whole table of .* offset 10, next seq 5"):
                table_as_of(reader, cut.settings, session, AsOf(offset=offset))
            continue
        found = table_as_of(reader, cut.settings, session, AsOf(offset=offset)).to_pylist()
        expected = truth_of(cut.come[: offset + 1], cut.settings.capture).session_rows[TOPIC, "long"]
        assert {row["row_id"]: row["price"] for row in found} == {n: row["price"] for n, row in expected.items()}
    with pytest.raises(LakeError, match="nothing older can be told"):
        table_as_of(reader, cut.settings, session, AsOf(seq=3))
    over = find_session(reader, cut.settings, "old")
    assert table_as_of(reader, cut.settings, over, AsOf(seq=3)).num_rows == 2
    with pytest.raises(LakeError, match=r"offset 5, next seq 4\), by maintain.retention"):
        table_as_of(reader, cut.settings, over, AsOf(ts=START + 2 * MINUTE))


def test_sql_tells_the_same_and_refuses_the_same(cut: Cut) -> None:
    create_session_as_of(cut.spark, cut.settings)

    def asked(session: str, minute: int) -> list[Any]:
        at = f"timestamp_millis({START + minute * MINUTE})"
        return list(fetch(cut.spark, cut.settings, f"SELECT * FROM session_as_of('{session}', {at})")[1])

    assert len(asked("long", 4 + 30 * 5)) == 3
    with pytest.raises(UsageError, match="session_changes does not reach back so far"):
        asked("long", 4 + 30 * 2)


def test_silver_is_read_as_of_a_batch_from_the_cut_on(cut: Cut) -> None:
    counting = "SELECT count(*) FROM silver.session_changes"
    assert answer_as_of(cut.spark, cut.settings, counting, 1, OutputFormat.CSV) == 1
    with pytest.raises(LakeError, match=r"session_changes that were .* of batches up to 1: .* not of 0"):
        answer_as_of(cut.spark, cut.settings, counting, 0, OutputFormat.CSV)


def test_a_trace_tells_what_is_gone(cut: Cut) -> None:
    assert trace(cut.reader, cut.settings, TOPIC, 0, 16).judgement.batch == 2
    with pytest.raises(NotThereError, match="bronze.messages begins at offset 6, by maintain.retention: 3 is gone"):
        trace(cut.reader, cut.settings, TOPIC, 0, 3)
    with pytest.raises(NotThereError, match=r"judged it in batch 1, and retention has removed rows of silver\.\w+ th"):
        trace(cut.reader, cut.settings, TOPIC, 0, 12)


def test_verify_compares_what_is_left_and_neither_it_nor_a_rebuild_goes_by_a_bronze_that_is_cut(cut: Cut) -> None:
    assert cut.verified
    *since, states = cut.said[1:]
    assert [line.partition(" of ")[2].partition(" ")[0] for line in since] == [EVENTS, QUARANTINE, CHANGES, SNAPSHOTS]
    assert all(line.endswith("it is compared from there on") for line in since)
    assert states.startswith("exact, too")
    with pytest.raises(LakeError, match="bronze.messages begins at offset 6, by maintain.retention: silver cannot be"):
        replay(cut.spark, cut.settings, version=cut.lake.last_commit(cut.spark, MESSAGES).version)


def test_stream_time_that_is_looked_up_knows_of_messages_that_are_gone(cut: Cut) -> None:
    place = TOPIC, 0
    assert _of_bronze(cut.spark, cut.lake, {place: 5}) == {place: START + 3 * MINUTE}
    assert _of_bronze(cut.spark, cut.lake, {place: 6}) == {place: START + 4 * MINUTE}
    with pytest.raises(LakeError, match=r"stream time up to offset 4 cannot be told"):
        _of_bronze(cut.spark, cut.lake, {place: 4})
