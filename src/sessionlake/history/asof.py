"""Computes the exact table of a session at a past moment, from a stored earlier table and the changes since then."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.bronze.kafka_times import TIME_COLUMNS, compute_valid_kafka_times
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, CUTS, MESSAGES, PROGRESS, SILVER, SNAPSHOT_INDEX, SNAPSHOTS
from sessionlake.delta.storage.far_times import convert_ms_to_time, convert_time_to_ms, format_time
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.delta.storage.values import convert_to_python_value
from sessionlake.errors import LakeError, UsageError
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.ledger.progress import read_last_merged_batch_number, read_last_offsets
from sessionlake.ledger.retained import (
    BronzePartitionStart,
    describe_partition_start,
    read_last_removed_position,
    read_partition_starts,
)
from sessionlake.ledger.silences import read_silences
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME, NOT_COUNTED
from sessionlake.protocol.message import INT64_MAX
from sessionlake.protocol.silence import Silence
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.settings.section import Integrity
from sessionlake.silver.merge.kept_cuts import read_cuts_with_stored_tables
from sessionlake.silver.stream_times import open_stored_stream_times
from sessionlake.silver.tables.as_of import SessionHistory, SessionMoment, are_seqs_past_cut, compute_table, to_epoch_ms
from sessionlake.silver.tables.snapshots import build_rows_schema, list_columns_of_session_changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_NAMED = 5
# The error for an unknown session suggests sessions that occur in this many rows.
_MAX_SEARCHED = 1_000
_SEEN_BY = ["_applied_at", "_applied_by"]


def session_as_of(
    settings: Settings,
    session: str,
    topic: str | None = None,
    *,
    partition: int | None = None,
    ts: datetime | int | None = None,
    seq: int | None = None,
    offset: int | None = None,
    spark: SparkSession | None = None,
) -> pa.Table:
    """Returns a session's table as it was at one moment, sorted by row id, with the columns of `session_rows`.

    Exactly one of `ts`, `seq` and `offset` must be given. It says which moment.

    Args:
        settings: The configuration.
        session: The session's id.
        topic: The session's topic. Needed if the id occurs in several topics.
        partition: The session's partition. Needed if the id occurs in several partitions of the topic.
        ts: Stream time of the session's topic-partition; an integer is ms since the Unix epoch.
        seq: The moment after all messages of the session's latest life with a seq up to this one were applied.
        offset: The moment after all messages of the topic-partition up to this offset had arrived.
        spark: Needed to read tables in a catalog. Local tables are read without Spark.

    Raises:
        UsageError: Not exactly one moment is given, or the session is unknown or ambiguous.
        LakeError: The table at this moment is not known. The text says which moments are known.
    """
    given = [name for name, value in (("ts", ts), ("seq", seq), ("offset", offset)) if value is not None]
    if len(given) != 1:
        raise UsageError(
            f"as-of needs exactly one moment, but these were given: {', '.join(given) or 'none'}",
            fix="Give one of the arguments ts, seq and offset",
        )
    moment = SessionMoment(ts=convert_datetime_to_ms(ts) if isinstance(ts, datetime) else ts, seq=seq, offset=offset)
    reader = Lake(settings).reader(spark)
    return compute_session_table(reader, settings, find_session(reader, settings, session, topic, partition), moment)


def compute_session_table(
    reader: TableReader, settings: Settings, session: SessionSummary, moment: SessionMoment
) -> pa.Table:
    """Returns the table of a known session at one moment, sorted by row id, with the columns of `session_rows`.

    Raises:
        LakeError: The table at this moment is not known. The text says which moments are known.
    """
    return _SessionAsOfQuery(reader, settings, session, moment).compute_table_at_moment()


def convert_datetime_to_ms(time: datetime) -> int:
    """Returns milliseconds since the Unix epoch. A time without a time zone counts as UTC."""
    return convert_time_to_ms(time)


@dataclass(frozen=True)
class SessionSummary:
    """What silver knows of a session after its latest batch.

    Attributes:
        topic: The session's topic.
        session_id: The session's id.
        partition: The session's partition.
        life: First offset of the session's latest life.
        next_seq: The next expected seq; None if no message with a seq was applied.
        in_seq_order: True if a message was applied after messages with higher seqs. Changes must then be applied in
            the order of their seqs to compute the table.
    """

    topic: str
    session_id: str
    partition: int
    life: int
    next_seq: int | None
    in_seq_order: bool

    def __str__(self) -> str:
        return f"session {self.session_id!r} of {self.topic}, partition {self.partition}"


def find_session(
    reader: TableReader, settings: Settings, session: str, topic: str | None = None, partition: int | None = None
) -> SessionSummary:
    """Returns what silver knows of the session with this id, after its latest batch.

    Raises:
        LakeError: There are no sessions yet.
        UsageError: No session has this id, or several have it and topic and partition do not choose one.
    """
    columns = ["topic", "session_id", "partition", "first_offset", "next_seq", "beneath", "_batch"]
    of_topic: list[Condition] = [] if topic is None else [("topic", operator.eq, topic)]
    noted = list(reader.read_rows(PROGRESS, ("session_id", operator.eq, session), *of_topic, columns=columns))
    place = choose_topic_partition_of_session(session, {(row["topic"], row["partition"]) for row in noted}, partition)
    if place is None:
        raise _create_unknown_session_error(reader, settings, session, topic, partition)
    noted = [row for row in noted if (row["topic"], row["partition"]) == place]
    last = max(noted, key=lambda row: row["_batch"])
    late_fills = any(row["beneath"] for row in noted)
    return SessionSummary(last["topic"], session, last["partition"], last["first_offset"], last["next_seq"], late_fills)


def choose_topic_partition_of_session(
    session: str, topic_partitions: Collection[TopicPartition], partition: int | None
) -> TopicPartition | None:
    """Returns the one topic-partition in which a session may be; None if there is none.

    Args:
        session: The session's id, for the error text.
        topic_partitions: The topic-partitions that have a session with this id.
        partition: The session's partition; None for any partition.

    Raises:
        UsageError: Several topic-partitions have such a session.
    """
    matches = sorted(place for place in topic_partitions if partition in (None, place[1]))
    topics = sorted({topic for topic, _ in matches})
    if len(topics) > 1:
        raise UsageError(f"session {session!r} exists in topics {', '.join(topics)}", fix="Choose one with --topic")
    if len(matches) > 1:
        numbers = ", ".join(str(number) for _, number in matches)
        raise UsageError(
            f"session {session!r} exists in several partitions of {topics[0]} ({numbers})",
            why="The same id in several partitions means several sessions",
            fix="Choose one with --partition NUMBER",
        )
    return matches[0] if matches else None


def _create_unknown_session_error(
    reader: TableReader, settings: Settings, session: str, topic: str | None, partition: int | None
) -> LakeError | UsageError:
    rows = reader.sample_rows(PROGRESS, _MAX_SEARCHED, columns=["session_id", "topic"])
    known = {(row["session_id"], row["topic"]) for row in rows}
    if not known:
        return LakeError(f"no sessions in {settings.home} yet", fix="Run `sessionlake run all --once` to fill it")
    some = ", ".join(f"{name} ({of})" for name, of in sorted(known)[:_MAX_NAMED])
    where = f"{f' of topic {topic}' if topic else ''}{'' if partition is None else f', partition {partition},'}"
    return UsageError(f"session {session!r}{where} is unknown", fix=f"Name a session that exists, such as {some}")


class _SessionAsOfQuery:
    """Computes one session's table at a past moment, from a cut (a stored earlier table) and the changes since then."""

    def __init__(self, reader: TableReader, settings: Settings, session: SessionSummary, moment: SessionMoment) -> None:
        self._reader, self._settings, self._session, self._moment = reader, settings, session, moment
        self._columns = settings.capture.declared_columns
        self._session_conditions: list[Condition] = [
            ("topic", operator.eq, session.topic),
            ("partition", operator.eq, session.partition),
            ("session_id", operator.eq, session.session_id),
        ]
        has_seqs = JudgingRuleLookup(settings.capture).find_judging_rules(session.topic).integrity is not Integrity.NONE
        self._history = SessionHistory(session.life, session.in_seq_order, has_seqs, self._has_stream_time_reached)

    def compute_table_at_moment(self) -> pa.Table:
        """Returns the session's table at the moment, sorted by row id.

        Raises:
            LakeError: The table at this moment is not known.
        """
        base, rows = self._compute_table_and_its_base_cut()
        # After the read, because retention records what it removes before it removes it.
        self._require_all_changes_since_cut_retained(base)
        return self._drop_session_columns_and_sort_by_row(rows)

    def _compute_table_and_its_base_cut(self) -> tuple[pa.Table | None, pa.Table]:
        """Returns the cut from which the table is computed, and the table. The cut is None if all changes are used."""
        self._refuse_moment_after_last_judged_message()
        history = replace(self._history, reached=self._has_stream_time_certainly_reached)
        cuts = self._moment.select_cuts(self._read_cuts_with_stored_tables(), history)
        seen = None
        for place in range(cuts.num_rows):
            base = cuts.slice(place, 1)
            if seen is not None and not are_seqs_past_cut(base, seen):
                continue
            seen = self._read_changes_from_cut_to_moment(base)
            if not self._session.in_seq_order or are_seqs_past_cut(base, seen):
                return base, compute_table(self._read_table_stored_at_cut(base), seen, self._columns, self._history)
        seen = self._read_changes_from_cut_to_moment(None)
        if not seen.num_rows:
            self._require_all_changes_since_cut_retained(None)
            self._refuse_moment_before_first_change()
        nothing = build_rows_schema(self._columns).empty_table()
        return None, compute_table(nothing, seen, self._columns, self._history)

    def _read_cuts_with_stored_tables(self) -> pa.Table:
        """Returns the cuts of the session whose tables are stored, up to the last merged batch."""
        conditions = *self._session_conditions, ("_batch", operator.le, read_last_merged_batch_number(self._reader))
        if not self._reader.exists(SNAPSHOT_INDEX):  # a home from before this index: the tables of all cuts are kept
            return self._reader.read_arrow_table(CUTS, *conditions)
        return read_cuts_with_stored_tables(self._reader.read_arrow_table, *conditions)

    def _drop_session_columns_and_sort_by_row(self, rows: pa.Table) -> pa.Table:
        return rows.drop_columns(list(SESSION)).sort_by("row_id")

    def _read_table_stored_at_cut(self, cut: pa.Table) -> pa.Table:
        key = "snapshot_at", "reason", "position"
        same: list[Condition] = [(name, operator.eq, convert_to_python_value(cut[name][0])) for name in key]
        schema = build_rows_schema(self._columns)
        conditions = *self._session_conditions, *same
        found = self._reader.read_arrow_table(SNAPSHOTS, *conditions, columns=schema.names).cast(schema)
        if "rows" in cut.column_names and cut["rows"][0].as_py() not in (None, found.num_rows):
            raise LakeError(
                f"{self._session}: retention is removing rows of {SNAPSHOTS} now", fix="Run the command again"
            )
        return found

    def _read_changes_from_cut_to_moment(self, cut: pa.Table | None) -> pa.Table:
        """Returns the session's changes after a cut up to the moment; without a cut (None), all up to the moment."""
        since: list[Condition] = []
        if cut is not None:
            since = [("_position", operator.gt, cut["position"][0].as_py())]
            since.append(("_batch", operator.ge, cut["_batch"][0].as_py()))
        if self._moment.offset is not None:
            since.append(("_offset", operator.le, self._moment.offset))
        if self._moment.ts is not None:
            since.append(("_applied_at", operator.le, convert_ms_to_time(self._moment.ts)))
        columns = [*list_columns_of_session_changes(self._columns), *_SEEN_BY]
        return self._moment.select_changes(
            self._reader.read_arrow_table(CHANGES, *self._session_conditions, *since, columns=columns), self._history
        )

    def _has_stream_time_certainly_reached(self, ts: int) -> bool:
        """Returns True if stream time had certainly reached `ts` (ms) at the moment; False if that is not known.

        Then bronze lacks the messages that tell it, and an earlier cut with more changes gives the same table.
        """
        return self._explain_why_stream_time_unknown(self._moment.offset) is None and self._has_stream_time_reached(ts)

    def _has_stream_time_reached(self, ts: int, offset: int | None = None) -> bool:
        """Returns True if the topic-partition's stream time had reached `ts` when bronze had read up to an offset.

        Args:
            ts: Stream time in ms.
            offset: The offset; None means the offset of the requested moment.

        Raises:
            LakeError: Bronze no longer has the messages that answer this.
        """
        until = self._moment.offset if offset is None else offset
        if (why_unknown := self._explain_why_stream_time_unknown(until)) is not None:
            raise LakeError(why_unknown, fix="Ask for a later moment")
        place = self._session.topic, self._session.partition
        gone = self._partition_starts_after_retention.get(place)
        if gone is not None and gone.highest_ms >= ts:
            return True
        own = (silence for silence in self._recorded_silences if silence.topic_partition == place)
        if any(silence.until >= ts for silence in own if until is None or silence.behind < until):
            return True
        later = self._reader.read_batches(
            MESSAGES,
            ("topic", operator.eq, self._session.topic),
            ("partition", operator.eq, self._session.partition),
            ("offset", operator.le, until),
            ("timestamp", operator.ge, convert_ms_to_time(ts)),
            columns=TIME_COLUMNS,
        )
        return any(bool((compute_valid_kafka_times(batch, self._settings) >= ts).any()) for batch in later)

    def _explain_why_stream_time_unknown(self, offset: int | None) -> str | None:
        """Returns a text that says why the stream time at an offset is unknown; None if it is known."""
        place = self._session.topic, self._session.partition
        gone = self._partition_starts_after_retention.get(place)
        if gone is None or offset is None or offset >= gone.last_removed:
            return None
        return f"{describe_partition_start(place, gone)}, so stream time at offset {offset} is not known"

    def _read_stream_time_after_offset(self, judged_offset: int) -> int:
        """Returns the stream time in ms that silver stored after it had judged the offset. Silences are included."""
        partitions, offsets = [(self._session.topic, self._session.partition)], np.array([judged_offset + 1])
        (time,), _ = open_stored_stream_times(self._settings, SILVER).read_stream_times_before(partitions, offsets)
        return NO_KAFKA_TIME if time == NOT_COUNTED else int(time)

    @cached_property
    def _recorded_silences(self) -> list[Silence]:
        return read_silences(self._reader)

    @cached_property
    def _partition_starts_after_retention(self) -> Mapping[TopicPartition, BronzePartitionStart]:
        return read_partition_starts(self._reader)

    # -- checks that the table at the moment is known

    def _require_all_changes_since_cut_retained(self, cut: pa.Table | None) -> None:
        """Checks that retention has not removed changes after the cut from which the table is computed.

        Without a cut (None), all changes must exist.

        Raises:
            LakeError: Retention has removed some of them.
        """
        session = self._session
        floor = read_last_removed_position(self._reader, session.topic, session.partition, session.session_id)
        if floor is None or (cut is not None and cut["position"][0].as_py() >= floor):
            return
        kept = self._read_cuts_with_stored_tables().filter(pc.field("position") >= floor).sort_by("position")
        at = int(to_epoch_ms(kept["snapshot_at"])[0])
        raise LakeError(
            f"{session}: the table before its snapshot of {format_time(at)} ({at} ms; offset "
            f"{kept['offset'][0].as_py()}, next seq {kept['next_seq'][0].as_py()}) is not known any more",
            why=f"maintain.retention has removed the older rows of {CHANGES}",
            fix="Ask for the moment of that snapshot or a later one",
        )

    def _refuse_moment_after_last_judged_message(self) -> None:
        session, moment = self._session, self._moment
        judged = read_last_offsets(self._reader, SILVER).get((session.topic, session.partition), -1)
        fix = f"Run `sessionlake session show {session.session_id}` for the table as it is now"
        if moment.offset is not None and moment.offset > judged:
            raise LakeError(
                f"{session}: silver has judged offsets up to {judged}, so the table after offset {moment.offset} is "
                "not known yet",
                fix=fix,
            )
        if moment.ts is not None and not (
            self._read_stream_time_after_offset(judged) >= moment.ts or self._has_stream_time_reached(moment.ts, judged)
        ):
            raise LakeError(
                f"{session}: the table at {format_time(moment.ts)} ({moment.ts}) is not known yet",
                why=f"Silver has judged offsets up to {judged}, and stream time has not reached "
                f"{format_time(moment.ts)}",
                fix=fix,
            )
        # The highest possible seq has no successor, so next_seq stays at it.
        if moment.seq is not None and moment.seq >= (session.next_seq or 0) != INT64_MAX:
            come = "no seq has been applied" if session.next_seq is None else f"the next seq is {session.next_seq}"
            raise LakeError(f"{session}: {come}, so seq {moment.seq} is not known yet", fix=fix)

    def _refuse_moment_before_first_change(self) -> None:
        columns = ["_position", "_seq", "_offset", "_life", *_SEEN_BY]
        changes = self._reader.read_arrow_table(CHANGES, *self._session_conditions, columns=columns)
        if not changes.num_rows:
            return  # a session whose table was always empty
        first = changes.sort_by("_position").slice(0, 1)
        at = int(to_epoch_ms(first["_applied_at"])[0])
        lives = changes.filter(pa.array(changes["_life"].to_numpy() == self._session.life))["_seq"].to_pylist()
        first_seq = min((seq for seq in lives if seq is not None), default=None)
        known = {
            "ts": f"at {format_time(at)} ({at})",
            "offset": f"with offset {first['_applied_by'][0].as_py()}",
            "seq": f"with seq {first_seq} (its latest life)",
        }
        name = next(name for name in known if getattr(self._moment, name) is not None)
        raise LakeError(
            f"{self._session} has no table yet at {name} {getattr(self._moment, name)}: it begins {known[name]}",
            fix="Ask for this beginning or a later moment",
        )
