"""A home of a version that kept the table at every cut: it is read on, and what is appended goes on by weight."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.cli.query import fetch_query_result
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CUTS, SNAPSHOT_INDEX, SNAPSHOTS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import LakeError
from sessionlake.history.asof import session_as_of
from sessionlake.ledger.entries import LedgerEntry
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import CaptureSettings, Settings, SilverSettings, TopicOverrideSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver import job
from sessionlake.silver.job import BatchCallback
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.tables.snapshots import CUT_COLUMNS, ROW_KEY
from sessionlake_lab.truth import KafkaMessage
from support.folding import plain, truth_of
from support.lakes import assert_silver_is_the_truth, limit, write_bronze
from support.streams import COLUMNS, LIGHT, StreamMaker, cut

CLASSES = (Integrity.STRICT, Integrity.ONCE, Integrity.WINDOW)
RULES = tuple(TopicOverrideSettings(pattern=rf"capture\.{name}", integrity=name, lateness="2 s") for name in CLASSES)
KEY = [*CUT_COLUMNS]


class Home:
    """A home that batches of messages come into, and what should be in it."""

    def __init__(self, spark: Any, folder: Path) -> None:
        capture = CaptureSettings(columns=COLUMNS, on_violation=OnViolation.RECORD, gap_timeout="5 s", by_topic=RULES)
        silver = SilverSettings(shards=2, snapshot_interval="5 s")
        self.spark, self.settings = spark, Settings(home=folder, capture=capture, silver=silver)
        self.lake, self.come, rnd = Lake(self.settings), list[KafkaMessage](), random.Random(4)
        self.lake.create_or_update_tables(spark, ["bronze.messages"])
        makers = [StreamMaker(rnd, LIGHT, [f"capture.{name}"]) for name in CLASSES]
        parts = zip(*(cut(rnd, maker.make(120), 3) for maker in makers), strict=True)
        self.batches = [[message for part in batch for message in part] for batch in parts]

    def take_in(self, number: int, on_batch: BatchCallback | None = None) -> None:
        """One more batch, judged and not merged."""
        write_bronze(self.spark, self.lake, self.batches[number])
        self.come += self.batches[number]
        job.start(self.spark, self.settings, once=True, on_batch=on_batch).wait()

    def merge(self) -> None:
        TableMerger(self.spark, self.settings).merge_all_pending_batches()

    def forget_counts(self) -> None:
        """Makes of `session_cuts` what it was without the number of changes."""
        found = self.lake.read(self.spark, CUTS).drop("changes")
        rows = self.spark.createDataFrame(found.collect(), found.schema)
        columns = tuple(column for column in TABLES[CUTS].definitions if column.name != "changes")
        self.lake.drop_table(self.spark, CUTS)
        self.lake.storage.create_table(self.spark, CUTS, replace(TABLES[CUTS], definitions=columns))
        self.lake.storage.append_rows_with_spark(rows, CUTS, {})

    def sizes(self) -> dict[tuple[Any, ...], int]:
        """How many rows each kept table has, by its cut."""
        counted = self.lake.read(self.spark, SNAPSHOTS).groupBy(*KEY).count().collect()
        return {tuple(row[name] for name in KEY): row["count"] for row in counted}

    def rows(self, table: str, *names: str) -> set[tuple[Any, ...]]:
        return set(map(tuple, self.lake.read(self.spark, table).select(*KEY, *names).collect()))

    def assert_as_of_is_the_truth(self, moments: int) -> None:
        """At some offsets of every session; and in SQL as in Python, at the last moment of one of each topic."""
        sessions = sorted(truth_of(self.come, self.settings.capture).session_rows)
        for number, (topic, place, session) in enumerate(sessions):
            lane = [m for m in self.come if (m.topic, m.partition) == (topic, place)]
            for count in [
                *random.Random(len(lane)).sample(range(1, len(lane)), min(moments, len(lane) - 1)),
                len(lane),
            ]:
                expected = truth_of(lane[:count], self.settings.capture).session_rows.get((topic, place, session), {})
                try:
                    found = session_as_of(self.settings, session, topic, partition=place, offset=lane[count - 1].offset)
                except LakeError:  # it has not begun
                    assert expected == {}
                    continue
                assert repr(by_id(plain(found))) == repr(sorted(expected.items()))
            if number == 0 or sessions[number - 1][0] != topic:
                self._assert_sql_tells_the_same(topic, place, session, max(message.timestamp for message in lane))

    def _assert_sql_tells_the_same(self, topic: str, partition: int, session: str, ts: int) -> None:
        sql = "SELECT * FROM session_as_of('{}', timestamp_millis({})) WHERE topic = '{}' AND partition = {}"
        names, rows = fetch_query_result(self.spark, self.settings, sql.format(session, ts, topic, partition))
        told = plain(session_as_of(self.settings, session, topic, partition=partition, ts=ts))
        assert repr(by_id([dict(zip(names, row, strict=True)) for row in rows])) == repr(by_id(told))


def by_id(rows: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return sorted((row["row_id"], {k: v for k, v in row.items() if k not in ROW_KEY}) for row in rows)


@pytest.mark.soak
def test_cuts_that_were_too_many_to_be_handed_over_are_read(spark: Any, tmp_path: Path) -> None:
    home, told = Home(spark, tmp_path / "home"), list[set[str]]()
    merger = TableMerger(spark, home.settings)
    assert merger.merge_all_pending_batches() == 0  # from now on it goes by what it is told

    def announce(entry: LedgerEntry, rows: Mapping[str, pa.Table]) -> None:
        told.append({*rows})
        first = len(told) == 1
        merger.add_pending_batch(entry, {table: found for table, found in rows.items() if not first or table != CUTS})

    home.take_in(0, announce)
    home.take_in(1, announce)
    assert [CUTS in tables for tables in told] == [True, True]
    assert merger.merge_all_pending_batches() == 1
    assert verify_silver_tables(spark, home.settings).is_exact


@pytest.mark.soak
def test_what_was_kept_before_is_read_on_and_tables_are_kept_by_weight_from_then_on(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(spark, tmp_path / "home")
    home.take_in(0)
    home.forget_counts()
    home.merge()  # cuts without a number of changes are kept, every one
    home.forget_counts()
    home.lake.drop_table(spark, SNAPSHOT_INDEX)
    before, kept = home.rows(CUTS), home.sizes()
    assert set(kept) <= before
    assert {reason for _, _, _, reason, _ in kept} >= {"interval"}
    home.assert_as_of_is_the_truth(1)

    home.take_in(1)
    with monkeypatch.context() as patch:  # on the cluster
        limit(patch, driver_cuts=0)
        home.merge()
    home.take_in(2)
    home.merge()
    index, sizes = home.rows(SNAPSHOT_INDEX, "rows"), home.sizes()
    assert {key: count for key, count in sizes.items() if key in before} == kept
    assert {(*key, count) for key, count in sizes.items() if key not in before} == {row for row in index if row[-1]}
    since = {row for row in home.rows(CUTS) - before if row[3] == "interval"}
    assert 0 < len(since & {row[:-1] for row in index}) < len(since)
    home.assert_as_of_is_the_truth(2)

    assert rebuild_silver_tables(spark, home.settings).comparison.tables == {CUTS, SNAPSHOTS, SNAPSHOT_INDEX}
    assert_silver_is_the_truth(spark, home.settings, home.come, ledger=False)
    home.assert_as_of_is_the_truth(0)
