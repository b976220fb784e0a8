"""What a simulation plays: how many sensors, how they live, what they say, and what goes wrong on the way."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, Self

from sessionlake.errors import UsageError

# A fixed birthday, so that a scenario without a start is the same bytes on every day.
EPOCH_MS = 1_700_000_000_000
DAY_S = 86_400.0
# Slots drawn together: large enough that numpy's fixed cost vanishes, small enough to stay in cache.
MAX_BLOCK = 4096
MAX_INT32 = 2**31 - 1


class KafkaRecord(NamedTuple):
    """One Kafka record as the simulator wants it written.

    Attributes:
        topic: full topic name.
        partition: chosen here (a hash of the key), so that a session stays in one partition whatever the client.
        key: session id in UTF-8; malformed messages may have any bytes or none.
        value: what a sensor would send.
        timestamp: Kafka CreateTime in milliseconds since the epoch: the simulated stream time.
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes
    timestamp: int


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often each thing goes wrong: shares between 0 and 1, of messages unless said otherwise.

    Attributes:
        duplicates: written a second time a little later.
        gaps: lost on the way; the session's next message shows the hole.
        swaps: written after its own successor.
        reordered: event time up to two seconds back, `seq` right.
        late: event time far behind any lateness, `seq` right.
        malformed: followed by an unusable one. It takes no `seq`, so it makes no gap. Every reason has its turn.
        orphans: share of sessions whose first snapshot is lost.
        after_end: share of ended sessions that speak once more.
    """

    duplicates: float = 0.0
    gaps: float = 0.0
    swaps: float = 0.0
    reordered: float = 0.0
    late: float = 0.0
    malformed: float = 0.0
    orphans: float = 0.0
    after_end: float = 0.0

    @classmethod
    def every(cls, rate: float) -> Self:
        """All faults at the same rate."""
        return cls(**{item.name: rate for item in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Mix:
    """What healthy sessions say: shares between 0 and 1 of their messages (of rows where said).

    Attributes:
        heartbeats: nothing changed.
        deletes: updates that delete a row; half of them carry rows too. A later update re-inserts it.
        snapshots: the whole table again, less a tenth of its rows.
        partial: share of an update's rows that carry some of the columns only.
        nulls: share of an update's rows with one column explicitly null.
        undeclared: share of an update's rows with a column that the configuration does not declare.
        unusual: valid JSON in an unexpected form (whitespace, field order, unknown and repeated fields).
        rows_per_update: mean number of rows of an update, at least 1.
        hot: how unevenly updates fall on rows: 1 evenly; at 2 the first hundredth of the rows gets a tenth.
        anomalies: share of sessions with one row that is stuck, spikes or drifts for a while.
    """

    heartbeats: float = 0.02
    deletes: float = 0.01
    snapshots: float = 0.002
    partial: float = 0.3
    nulls: float = 0.01
    undeclared: float = 0.005
    unusual: float = 0.002
    rows_per_update: float = 1.5
    hot: float = 2.0
    anomalies: float = 0.3


PLAIN = Mix(heartbeats=0, deletes=0, snapshots=0, partial=0, nulls=0, undeclared=0, unusual=0, rows_per_update=1, hot=1)
"""Updates of one row with every column, evenly over the rows: the shape that throughput is measured with."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A simulation, complete: the same scenario gives the same messages, in the same order, with the same timestamps.

    Attributes:
        seed: picks the whole history.
        sensors: topics.
        sessions_per_sensor: sessions of each over the whole run.
        rows: rows of a session's table.
        rate: messages a second of stream time, over all sensors, before faults add or take some.
        duration_s: stream time from the first to the last message, in seconds.
        start_ms: stream time of the first message, milliseconds since the epoch.
        partitions: of each topic.
        prefix: of topic names.
        day_s: length of the "daily" cycle, seconds; None: a day, or a shorter run's duration, so that it shows one.
        late_sensors: share of sensors whose topic appears only after the run has begun.
        joining: share of a sensor's sessions that start while it runs, not with it.
        ended: share of sessions that end before the run does.
        silent: share of sessions that fall silent without an end.
        round_robin: sessions take strict turns; otherwise their turns are random.
        lateness_s: what the judge allows; late messages are behind it by half to three times as much again.
        future_skew_s: how far ahead of Kafka's time the judge lets an event be; "future" is a millisecond more.
        max_message_bytes: the judge's limit; "too large" is one byte more.
    """

    seed: int = 0
    sensors: int = 4
    sessions_per_sensor: int = 10
    rows: int = 200
    rate: float = 1000.0
    duration_s: float = 60.0
    start_ms: int = EPOCH_MS
    partitions: int = 2
    prefix: str = "capture."
    day_s: float | None = None
    late_sensors: float = 0.25
    joining: float = 0.3
    ended: float = 0.25
    silent: float = 0.15
    round_robin: bool = False
    lateness_s: float = 600.0
    future_skew_s: float = DAY_S
    max_message_bytes: int = 10 * 1024 * 1024
    mix: Mix = field(default_factory=Mix)
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        """Checks every number.

        Raises:
            UsageError: naming the option, its value and what is allowed.
        """
        for name in ("sensors", "sessions_per_sensor", "rows", "partitions"):
            _within(name, getattr(self, name), 1, 10_000_000)
        _within("seed", self.seed, 0, MAX_INT32)
        _within("rate", self.rate, 0.001, 10_000_000)
        _within("duration_s", self.duration_s, 0.001, 10 * 365 * DAY_S)
        _within("day_s", self.day if self.day_s is None else self.day_s, 0.001, 10 * 365 * DAY_S)
        _within("rows_per_update", self.mix.rows_per_update, 1, 1000)
        _within("hot", self.mix.hot, 0.1, 10)
        for name in ("late_sensors", "joining", "ended", "silent"):
            _within(name, getattr(self, name), 0, 1)
        for part in (self.mix, self.faults):
            for item in fields(part):
                if item.name not in ("rows_per_update", "hot"):
                    _within(item.name, getattr(part, item.name), 0, 1)

    @classmethod
    def bench(cls, *, sessions: int, rows: int, messages: int, seed: int = 0, rate: float = 1000.0) -> Self:
        """One snapshot a session, then one-row updates of about 100 bytes in strict turns: exactly `messages` in all.

        Args:
            sessions: in all, spread over four sensors where that divides evenly, else over one.
            rows: rows of a session's table.
            messages: total, snapshots included.
            seed: picks the values.
            rate: messages a second of stream time, which only spaces the timestamps.
        """
        sensors = 4 if sessions % 4 == 0 else 1
        quiet = replace(PLAIN, anomalies=0.0)
        return cls(
            seed=seed, sensors=sensors, sessions_per_sensor=sessions // sensors, rows=rows, rate=rate,
            duration_s=messages / rate, late_sensors=0, joining=0, ended=0, silent=0, round_robin=True, mix=quiet,
        )  # fmt: skip

    @property
    def sessions(self) -> int:
        """Sessions of all sensors."""
        return self.sensors * self.sessions_per_sensor

    @property
    def slots(self) -> int:
        """Messages that the sensors mean to send, before faults add or take some."""
        return max(1, round(self.rate * self.duration_s))

    @property
    def block(self) -> int:
        """Slots drawn together: a tenth of a second, so that a live stream is never far ahead of its clock."""
        return max(1, min(MAX_BLOCK, int(self.rate / 10)))

    @property
    def day(self) -> float:
        """Seconds of one daily cycle."""
        return self.day_s if self.day_s is not None else max(1.0, min(DAY_S, self.duration_s))


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"simulate: {name} = {value:g}; allowed is {low:g} to {high:g}. Give another value for it.")
