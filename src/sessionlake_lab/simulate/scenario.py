"""Parameters of a simulation: its sensors and sessions, the mix of their messages, and the faults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple, Self

from sessionlake.errors import UsageError

# A fixed start time, so that a scenario without a start gives the same bytes on every day.
EPOCH_MS = 1_700_000_000_000
DAY_S = 86_400.0
# Maximum number of slots in a block: large enough to hide numpy's fixed cost, small enough for the CPU's cache.
MAX_BLOCK = 4096
MAX_INT32 = 2**31 - 1


class KafkaRecord(NamedTuple):
    """One Kafka record to write.

    Attributes:
        topic: Full topic name.
        partition: A hash of the key, computed by the simulator so that a session stays in one partition.
        key: Session id in UTF-8. A malformed message may have any bytes, or None.
        value: The message.
        timestamp: Kafka CreateTime in milliseconds since 1970, which is the simulated stream time.
    """

    topic: str
    partition: int
    key: bytes | None
    value: bytes
    timestamp: int


@dataclass(frozen=True, kw_only=True)
class FaultRates:
    """How often each fault occurs: shares between 0 and 1, of messages unless the field names sessions.

    Attributes:
        duplicates: Share of messages that are written twice.
        gaps: Share of messages that are lost; the session's next message reveals the gap.
        swaps: Share of messages that are written after the session's next one.
        reordered: Share of messages with an event time up to two seconds early and a correct `seq`.
        late: Share of messages with an event time far beyond the lateness and a correct `seq`.
        malformed: Share of messages followed by a malformed one without its own `seq`; reasons alternate.
        orphans: Share of sessions whose first snapshot is lost.
        after_end: Share of ended sessions that send one more message.
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
    def create_with_equal_rates(cls, rate: float) -> Self:
        """Returns faults that all have the same rate."""
        return cls(**{item.name: rate for item in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class MessageMix:
    """The mix of messages of healthy sessions: shares between 0 and 1 of their messages, unless the field names rows.

    Attributes:
        heartbeats: Share of messages that are heartbeats.
        deletes: Share of messages that delete a row; half of them have rows too. A later update re-inserts the row.
        snapshots: Share of messages that are a new snapshot, with nine tenths of the rows.
        partial: Share of an update's rows that have only some of the columns.
        nulls: Share of an update's rows with one column set to null.
        undeclared: Share of an update's rows with a column that the configuration does not declare.
        unusual: Share of messages in an unusual form of JSON (whitespace, field order, unknown or repeated fields).
        rows_per_update: Mean number of rows of an update, at least 1.
        hot: How unevenly updates are spread over rows: 1 is even; 2 sends a tenth to the first hundredth of the rows.
        anomalies: Share of sessions with one row that is stuck, spikes or drifts for a while.
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


PLAIN = MessageMix(
    heartbeats=0, deletes=0, snapshots=0, partial=0, nulls=0, undeclared=0, unusual=0, rows_per_update=1, hot=1
)
"""Only updates of one row with all columns, evenly spread over the rows. Benchmarks use this mix."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """All parameters of a simulation. The same scenario gives the same messages with the same order and timestamps.

    Attributes:
        seed: Seed of all random choices.
        sensors: Number of sensors; each has one topic.
        sessions_per_sensor: Number of sessions of each sensor over the whole run.
        rows: Number of rows of a session's table.
        rate: Messages per second of stream time, over all sensors, before faults add or remove some.
        duration_s: Stream time from the first to the last message, in seconds.
        start_ms: Stream time of the first message, in milliseconds since 1970.
        partitions: Number of partitions of each topic.
        prefix: Prefix of topic names.
        day_s: Length of the daily cycle in seconds; by default a day, or the duration of a shorter run.
        late_sensors: Share of sensors whose topic appears after the run has started.
        joining: Share of a sensor's sessions that start after the sensor.
        ended: Share of sessions that end before the run does.
        silent: Share of sessions that stop without an end message.
        round_robin: Sessions send in strict turns instead of random ones.
        lateness_s: Allowed lateness in seconds; late messages exceed it by half to three times as much.
        future_skew_s: How far an event may be ahead of Kafka's time, in seconds; "future" exceeds it by a millisecond.
        max_message_bytes: Size limit of a message; "too large" exceeds it by one byte.
        run_id: Part of all session ids; by default a hash of seed and start, since a restarted producer takes new ids.
        mix: The mix of healthy messages.
        faults: The rates of faults.
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
    run_id: str | None = None
    mix: MessageMix = field(default_factory=MessageMix)
    faults: FaultRates = field(default_factory=FaultRates)

    def __post_init__(self) -> None:
        """Checks that every number is within its range.

        Raises:
            UsageError: A number is out of range. The text has the option, its value and the range.
        """
        for name in ("sensors", "sessions_per_sensor", "rows", "partitions"):
            _require_number_within(name, getattr(self, name), 1, 10_000_000)
        _require_number_within("seed", self.seed, 0, MAX_INT32)
        _require_number_within("rate", self.rate, 0.001, 10_000_000)
        _require_number_within("duration_s", self.duration_s, 0.001, 10 * 365 * DAY_S)
        _require_number_within(
            "day_s", self.seconds_per_simulated_day if self.day_s is None else self.day_s, 0.001, 10 * 365 * DAY_S
        )
        _require_number_within("rows_per_update", self.mix.rows_per_update, 1, 1000)
        _require_number_within("hot", self.mix.hot, 0.1, 10)
        for name in ("late_sensors", "joining", "ended", "silent"):
            _require_number_within(name, getattr(self, name), 0, 1)
        for part in (self.mix, self.faults):
            for item in fields(part):
                if item.name not in ("rows_per_update", "hot"):
                    _require_number_within(item.name, getattr(part, item.name), 0, 1)

    @classmethod
    def create_benchmark(cls, *, sessions: int, rows: int, messages: int, seed: int = 0, rate: float = 1000.0) -> Self:
        """Returns a benchmark scenario: one snapshot per session, then one-row updates of about 100 bytes in turns.

        Args:
            sessions: Number of sessions, on four sensors if the number is divisible by four, else on one.
            rows: Number of rows of a session's table.
            messages: Exact number of messages, including snapshots.
            seed: Seed of the values.
            rate: Messages per second of stream time. It only determines the timestamps.
        """
        sensors = 4 if sessions % 4 == 0 else 1
        quiet = replace(PLAIN, anomalies=0.0)
        return cls(
            seed=seed, sensors=sensors, sessions_per_sensor=sessions // sensors, rows=rows, rate=rate,
            duration_s=messages / rate, late_sensors=0, joining=0, ended=0, silent=0, round_robin=True, mix=quiet,
        )  # fmt: skip

    @property
    def session_count(self) -> int:
        """Number of sessions of all sensors."""
        return self.sensors * self.sessions_per_sensor

    @property
    def message_slot_count(self) -> int:
        """Number of messages before faults add or remove some."""
        return max(1, round(self.rate * self.duration_s))

    @property
    def slots_per_block(self) -> int:
        """Number of slots in a block: at most a tenth of a second, so that a live stream stays close to the clock."""
        return max(1, min(MAX_BLOCK, int(self.rate / 10)))

    @property
    def seconds_per_simulated_day(self) -> float:
        """Length of the daily cycle in seconds."""
        return self.day_s if self.day_s is not None else max(1.0, min(DAY_S, self.duration_s))


def _require_number_within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UsageError(f"simulate: {name} = {value:g}", fix=f"Give a value from {low:g} to {high:g}")
