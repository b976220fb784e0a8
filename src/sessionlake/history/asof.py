"""The exact table of a session at any moment of its history: the nearest snapshot, and the changes since."""

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

from sessionlake.bronze.kafka_times import TIME_COLUMNS, counted_times_of
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, CUTS, MESSAGES, PROGRESS, SILVER, SNAPSHOT_INDEX, SNAPSHOTS
from sessionlake.delta.storage.far_times import ms_of, time_of, time_text
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.delta.storage.values import value_of
from sessionlake.errors import LakeError, UsageError
from sessionlake.integrity.rules import RuleBook
from sessionlake.ledger.progress import last_merged_batch, last_offsets
from sessionlake.ledger.retained import Beginning, beginnings, describe_beginning, last_removed_position
from sessionlake.ledger.silences import read_silences
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME, NOT_COUNTED
from sessionlake.protocol.message import INT64_MAX
from sessionlake.protocol.silence import Silence
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Integrity, Settings
from sessionlake.silver.merge.kept_cuts import kept_cuts
from sessionlake.silver.stream_times import stored_times
from sessionlake.silver.tables.as_of import AsOf, SessionHistory, can_follow, milliseconds, table_after
from sessionlake.silver.tables.snapshots import change_columns, rows_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMED = 5
# Among so many rows, others of the sessions that there are, are looked for.
_LOOKED_AT = 1_000
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
    """The rows of a session's table at one moment, by row id, with the columns of `session_rows`.

    Args:
        topic: the session's, where its id alone is ambiguous.
        partition: the session's, where its id occurs in several of the topic's.
        ts: stream time of its topic-partition, which its Kafka timestamps have come to; an integer is milliseconds.
        seq: after the last message with a seq of at most this was applied, in the session's latest life.
        offset: after the messages of its topic-partition up to this offset had come.
        spark: reads the tables where they are in a catalog. Local tables need none.

    Raises:
        UsageError: not exactly one moment, or an unknown or ambiguous session.
        LakeError: the moment is not known, with what is.
    """
    given = [name for name, value in (("ts", ts), ("seq", seq), ("offset", offset)) if value is not None]
    if len(given) != 1:
        raise UsageError(f"as-of takes one moment, a ts, a seq or an offset; given: {', '.join(given) or 'none'}")
    moment = AsOf(ts=_moment_ms(ts), seq=seq, offset=offset)
    reader = Lake(settings).reader(spark)
    return table_as_of(reader, settings, find_session(reader, settings, session, topic, partition), moment)


def table_as_of(reader: TableReader, settings: Settings, session: SessionSummary, moment: AsOf) -> pa.Table:
    """The rows of a found session's table at one moment: see `session_as_of`.

    Raises:
        LakeError: the moment is not known, with what is.
    """
    return _Question(reader, settings, session, moment).table()


def _moment_ms(ts: datetime | int | None) -> int | None:
    return to_ms(ts) if isinstance(ts, datetime) else ts


def to_ms(time: datetime) -> int:
    """Milliseconds since the epoch; a time without a zone is in UTC."""
    return ms_of(time)


@dataclass(frozen=True)
class SessionSummary:
    """What silver has noted of a session, up to its latest batch."""

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
    """The session of this id.

    Raises:
        LakeError: there are no sessions yet.
        UsageError: there is none of this id, or several, by topic or partition, of which none is chosen.
    """
    columns = ["topic", "session_id", "partition", "first_offset", "next_seq", "beneath", "_batch"]
    of_topic: list[Condition] = [] if topic is None else [("topic", operator.eq, topic)]
    noted = list(reader.rows(PROGRESS, ("session_id", operator.eq, session), *of_topic, columns=columns))
    place = choose_place(session, {(row["topic"], row["partition"]) for row in noted}, partition)
    if place is None:
        raise _unknown(reader, settings, session, topic, partition)
    noted = [row for row in noted if (row["topic"], row["partition"]) == place]
    last = max(noted, key=lambda row: row["_batch"])
    late_fills = any(row["beneath"] for row in noted)
    return SessionSummary(last["topic"], session, last["partition"], last["first_offset"], last["next_seq"], late_fills)


def choose_place(session: str, places: Collection[TopicPartition], partition: int | None) -> TopicPartition | None:
    """The topic and partition of the only session that is meant; None if there is none.

    Args:
        places: where sessions of this id are.
        partition: the one that is meant; None if any.

    Raises:
        UsageError: several are meant.
    """
    meant = sorted(place for place in places if partition in (None, place[1]))
    topics = sorted({topic for topic, _ in meant})
    if len(topics) > 1:
        raise UsageError(f"session {session!r} exists in {', '.join(topics)}: choose one with --topic")
    if len(meant) > 1:
        numbers = ", ".join(str(number) for _, number in meant)
        raise UsageError(
            f"session {session!r} exists in several partitions of {topics[0]} ({numbers}), which makes it as many "
            "sessions: choose one with --partition"
        )
    return meant[0] if meant else None


def _unknown(
    reader: TableReader, settings: Settings, session: str, topic: str | None, partition: int | None
) -> LakeError | UsageError:
    rows = reader.sample(PROGRESS, _LOOKED_AT, columns=["session_id", "topic"])
    known = {(row["session_id"], row["topic"]) for row in rows}
    if not known:
        return LakeError(f"no sessions in {settings.home} yet: fill it with `sessionlake run all --once`")
    some = ", ".join(f"{name} ({of})" for name, of in sorted(known)[:_NAMED])
    where = f"{f' of topic {topic}' if topic else ''}{'' if partition is None else f', partition {partition},'}"
    return UsageError(f"session {session!r}{where} is unknown; there are {some}, …")


class _Question:
    """One question for one session's table, answered from the nearest cut before and the changes since."""

    def __init__(self, reader: TableReader, settings: Settings, session: SessionSummary, moment: AsOf) -> None:
        self._reader, self._settings, self._session, self._moment = reader, settings, session, moment
        self._columns = settings.capture.declared
        self._own: list[Condition] = [
            ("topic", operator.eq, session.topic),
            ("partition", operator.eq, session.partition),
            ("session_id", operator.eq, session.session_id),
        ]
        has_seqs = RuleBook(settings.capture).of(session.topic).integrity is not Integrity.NONE
        self._history = SessionHistory(session.life, session.in_seq_order, has_seqs, self._reached)

    def table(self) -> pa.Table:
        """The session's rows at the moment, by row id.

        Raises:
            LakeError: the moment is not known.
        """
        base, rows = self._answer()
        self._refuse_cut(base)  # behind the reading: what is noted there goes after that
        return self._sorted(rows)

    def _answer(self) -> tuple[pa.Table | None, pa.Table]:
        """The cut that the moment is told from, if there is one, and the table."""
        self._refuse_later()
        cuts = self._moment.cuts_before(self._merged_cuts(), replace(self._history, reached=self._surely_reached))
        seen = None
        for place in range(cuts.num_rows):
            base = cuts.slice(place, 1)
            if seen is not None and not can_follow(base, seen):
                continue
            seen = self._seen(base)
            if not self._session.in_seq_order or can_follow(base, seen):
                return base, table_after(self._snapshot(base), seen, self._columns, self._history)
        seen = self._seen(None)
        if not seen.num_rows:
            self._refuse_cut(None)
            self._refuse_earlier()
        nothing = rows_schema(self._columns).empty_table()
        return None, table_after(nothing, seen, self._columns, self._history)

    def _merged_cuts(self) -> pa.Table:
        """The session's cuts of which the tables are kept, less those that are still to be merged."""
        conditions = *self._own, ("_batch", operator.le, last_merged_batch(self._reader))
        if not self._reader.exists(SNAPSHOT_INDEX):  # a home of before there was one: all tables were kept
            return self._reader.table(CUTS, *conditions)
        return kept_cuts(self._reader.table, *conditions)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        return rows.drop_columns(list(SESSION)).sort_by("row_id")

    def _snapshot(self, base: pa.Table) -> pa.Table:
        same: list[Condition] = [
            (name, operator.eq, value_of(base[name][0])) for name in ("snapshot_at", "reason", "position")
        ]
        schema = rows_schema(self._columns)
        found = self._reader.table(SNAPSHOTS, *self._own, *same, columns=schema.names).cast(schema)
        if "rows" in base.column_names and base["rows"][0].as_py() not in (None, found.num_rows):
            raise LakeError(f"{self._session}: retention removes rows of {SNAPSHOTS} just now: ask once more")
        return found

    def _seen(self, base: pa.Table | None) -> pa.Table:
        """The changes since a cut, or since the beginning, that the moment has seen."""
        since: list[Condition] = []
        if base is not None:
            since = [("_position", operator.gt, base["position"][0].as_py())]
            since.append(("_batch", operator.ge, base["_batch"][0].as_py()))
        if self._moment.offset is not None:
            since.append(("_offset", operator.le, self._moment.offset))
        if self._moment.ts is not None:
            since.append(("_applied_at", operator.le, time_of(self._moment.ts)))
        columns = [*change_columns(self._columns), *_SEEN_BY]
        return self._moment.seen(self._reader.table(CHANGES, *self._own, *since, columns=columns), self._history)

    def _surely_reached(self, ts: int) -> bool:
        """As `_reached`; False where it is not in bronze any more: from a cut before, changes lead to the same."""
        return self._untold(self._moment.offset) is None and self._reached(ts)

    def _reached(self, ts: int, offset: int | None = None) -> bool:
        """Whether the topic-partition's stream time had come to this (ms) with this offset, or the one asked for.

        Raises:
            LakeError: it is not in bronze any more.
        """
        until = self._moment.offset if offset is None else offset
        if (untold := self._untold(until)) is not None:
            raise LakeError(untold)
        place = self._session.topic, self._session.partition
        gone = self._beginnings.get(place)
        if gone is not None and gone.highest_ms >= ts:
            return True
        silent = (one for one in self._silences if one.place == place and (until is None or one.behind < until))
        if any(one.until >= ts for one in silent):
            return True
        later = self._reader.batches(
            MESSAGES,
            ("topic", operator.eq, self._session.topic),
            ("partition", operator.eq, self._session.partition),
            ("offset", operator.le, until),
            ("timestamp", operator.ge, time_of(ts)),
            columns=TIME_COLUMNS,
        )
        return any(bool((counted_times_of(batch, self._settings) >= ts).any()) for batch in later)

    def _untold(self, offset: int | None) -> str | None:
        """Why stream time with an offset cannot be told; None if it can."""
        place = self._session.topic, self._session.partition
        gone = self._beginnings.get(place)
        if gone is None or offset is None or offset >= gone.last_removed:
            return None
        return f"{describe_beginning(place, gone)}: stream time with offset {offset} cannot be told"

    def _noted(self, judged: int) -> int:
        """Stream time behind the last offset that silver has judged, with the silences that it has taken in, by it."""
        place = self._session.topic, self._session.partition
        (time,), _ = stored_times(self._settings, SILVER).before([place], np.array([judged + 1]))
        return NO_KAFKA_TIME if time == NOT_COUNTED else int(time)

    @cached_property
    def _silences(self) -> list[Silence]:
        return read_silences(self._reader)

    @cached_property
    def _beginnings(self) -> Mapping[TopicPartition, Beginning]:
        return beginnings(self._reader)

    # -- what is not known

    def _refuse_cut(self, base: pa.Table | None) -> None:
        """Refuses what was told without changes that are gone."""
        session = self._session
        floor = last_removed_position(self._reader, session.topic, session.partition, session.session_id)
        if floor is None or (base is not None and base["position"][0].as_py() >= floor):
            return
        kept = self._merged_cuts().filter(pc.field("position") >= floor).sort_by("position")
        at = int(milliseconds(kept["snapshot_at"])[0])
        raise LakeError(
            f"{session}: {CHANGES} begins behind its whole table of {time_text(at)} ({at}; offset "
            f"{kept['offset'][0].as_py()}, next seq {kept['next_seq'][0].as_py()}), by maintain.retention: nothing "
            "older can be told"
        )

    def _refuse_later(self) -> None:
        session, moment = self._session, self._moment
        judged = last_offsets(self._reader, SILVER).get((session.topic, session.partition), -1)
        now = f"; `sessionlake session show {session.session_id}` has the table as it is now"
        if moment.offset is not None and moment.offset > judged:
            raise LakeError(
                f"{session}: silver has judged offsets up to {judged}, {moment.offset} is not known yet{now}"
            )
        if moment.ts is not None and not (self._noted(judged) >= moment.ts or self._reached(moment.ts, judged)):
            raise LakeError(
                f"{session}: up to offset {judged}, which silver has judged, stream time has not come to "
                f"{time_text(moment.ts)} ({moment.ts}){now}"
            )
        # The last possible seq is its own successor.
        if moment.seq is not None and moment.seq >= (session.next_seq or 0) != INT64_MAX:
            come = "no seq has been applied" if session.next_seq is None else f"seq {session.next_seq} is due"
            raise LakeError(f"{session}: {come}, {moment.seq} is not known yet{now}")

    def _refuse_earlier(self) -> None:
        columns = ["_position", "_seq", "_offset", "_life", *_SEEN_BY]
        changes = self._reader.table(CHANGES, *self._own, columns=columns)
        if not changes.num_rows:
            return  # a session whose table was always empty
        first = changes.sort_by("_position").slice(0, 1)
        at = int(milliseconds(first["_applied_at"])[0])
        lives = changes.filter(pa.array(changes["_life"].to_numpy() == self._session.life))["_seq"].to_pylist()
        seqs = [seq for seq in lives if seq is not None]
        known = {
            "ts": f"at {time_text(at)} ({at})",
            "offset": f"with offset {first['_applied_by'][0].as_py()}",
            "seq": f"with seq {min(seqs, default=None)} (its latest life)",
        }
        name = next(name for name in known if getattr(self._moment, name) is not None)
        raise LakeError(f"{self._session}: its table begins {known[name]}, not before {getattr(self._moment, name)}")
