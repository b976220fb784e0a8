"""Random captures with every fault of the protocol, from a seed. Law tests give them to silver and the truth."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from sessionlake.protocol.silence import Silence
from sessionlake_lab.truth import KafkaMessage
from support.malformed import MALFORMED, Broken

Fact = KafkaMessage | Silence
T = TypeVar("T")
COLUMNS = {
    "price": "double",
    "qty": "bigint",
    "status": "string",
    "flag": "boolean",
    "ratio": "float",
    "tiny": "tinyint",
    "small": "smallint",
    "whole": "int",
}
SESSION_TIMEOUT = 3_600_000
SKEW = 86_400_000
MAX_BYTES = 4_096
START = 1_700_000_000_000
INT64_MAX = 2**63 - 1
TOPICS = ("capture.a", "capture.b", "capture.ö", "capture.a.b")

_IDS = ["r0", "r1", "r2", "r3", "ä", "日本", "😀", " ", "\x00", "é" * 512, '"\\', "null"]
_VALUES: dict[str, list[Any]] = {
    "double": [0, 1, -1, 0.1, -0.0, 5e-324, 1.7976931348623157e308, 2**53 + 1, 10**30, 1e22, 123456789.123456789],
    "float": [0, 0.1, -0.0, 3.4028234e38, 16777217, 1e-46, 7],
    "bigint": [0, -1, INT64_MAX, -INT64_MAX - 1, 42],
    "int": [0, 2**31 - 1, -(2**31)],
    "smallint": [0, 2**15 - 1, -(2**15)],
    "tinyint": [0, 127, -128],
    "string": ["", "OPEN", "ü", "\n", "\u2028", "a" * 30, "\x7f", "7"],
    "boolean": [True, False],
}
_UNDECLARED: dict[str, list[Any]] = {
    "extra": [1, None, "x", 10**40, 0.1, -0.0],
    "Price": [1.5],
    "_rescued": ["own"],
    "nested": [{"b": [1, {"z": None, "a": "ö"}], "a": {}}, [], [[[]]]],
    "topic": ["t"],
}


@dataclass(frozen=True)
class Noise:
    """Probabilities of faults, per message."""

    fault: float
    malformed: float
    silence: float
    early_end: float = 0.0


CALM = Noise(0.0, 0.0, 0.0)
LIGHT = Noise(0.05, 0.03, 0.01)
WILD = Noise(0.4, 0.15, 0.08)
HASTY = Noise(0.05, 0.04, 0.05, early_end=0.15)
"""Probability that an end arrives before earlier messages."""


@dataclass
class _Sensor:
    """State of one session in its producer."""

    topic: str
    partition: int
    key: str
    seq: int
    begun: bool = False
    ended: bool = False
    last_time: int | None = None
    sent: list[dict[str, Any]] = field(default_factory=list)
    queue: list[dict[str, Any]] = field(default_factory=list)


class StreamMaker:
    """Makes one stream with interleaved topics, partitions and sessions. Offsets rise by one in each partition.

    Attributes:
        now: Kafka's time in ms. It advances by seconds, and tests may advance it further.
    """

    def __init__(self, rnd: random.Random, noise: Noise, topics: Sequence[str] = TOPICS) -> None:
        self._rnd, self._noise = rnd, noise
        self.now = START
        self._lanes: dict[tuple[str, int], list[int]] = {}  # next offset, Kafka time
        self._topics = rnd.sample(topics, rnd.randint(1, min(3, len(topics))))
        self._twinned: set[str] = set()
        self._sensors: list[_Sensor] = []
        for number in range(rnd.randint(1, 8)):
            self._sensors.append(self._sensor(rnd.choice(self._topics), number))

    def _sensor(self, topic: str, number: int) -> _Sensor:
        rnd = self._rnd
        spellings = [f"sé😀{number}", f" {number}", f"{number}".rjust(256, "x") if number == 3 else f"-{number}"]
        # A key in two topics or two partitions is two sessions. In one partition it is one session.
        twin = "twin" if topic not in self._twinned else spellings[0]
        self._twinned.add(topic)
        start = rnd.choice([0, 0, 0, 1, 17, INT64_MAX - 4]) if self._noise.fault else 0
        partition, key = number % rnd.randint(1, 3), rnd.choice([twin, *spellings])
        split = self._keys(topic, elsewhere=partition) - self._keys(topic, partition)
        apart = random.Random(repr(rnd.getstate()))  # does not change the random numbers of what follows
        if split and apart.random() < 0.4:
            key = apart.choice(sorted(split))
        return _Sensor(topic, partition, key, start)

    def _keys(self, topic: str, partition: int | None = None, elsewhere: int | None = None) -> set[str]:
        """Returns the keys of a topic's sensors, of one partition or of all but one."""
        own = (one for one in self._sensors if one.topic == topic and partition in (None, one.partition))
        return {one.key for one in own if one.partition != elsewhere}

    def make(self, count: int) -> list[KafkaMessage]:
        """Returns the next `count` messages of the stream."""
        return [self._message() for _ in range(count)]

    def _message(self) -> KafkaMessage:
        rnd, noise = self._rnd, self._noise
        sensor = rnd.choice(self._sensors)
        timestamp = self._timestamp(sensor)
        body = self._next_body(sensor, timestamp)
        key: bytes | None = sensor.key.encode()
        value: bytes | None = spelled(rnd, body)
        if rnd.random() < noise.malformed:
            broken: Broken = rnd.choice(MALFORMED)(rnd, dict(body), timestamp)
            key, value = (key, broken.value) if broken.key is Ellipsis else (broken.key, broken.value)
        else:
            sensor.last_time = timestamp
        lane = self._lanes[sensor.topic, sensor.partition]
        lane[0] += 1
        return KafkaMessage(sensor.topic, sensor.partition, lane[0] - 1, timestamp, key, value)

    def _timestamp(self, sensor: _Sensor) -> int:
        rnd = self._rnd
        lane = self._lanes.setdefault((sensor.topic, sensor.partition), [rnd.choice([0, 0, 1000]), START])
        lane[1] = max(lane[1] + rnd.randint(0, 2_000), self.now)
        if rnd.random() < self._noise.silence:
            quiet = SESSION_TIMEOUT + rnd.choice([-1, 0, 1, SESSION_TIMEOUT])
            lane[1] = max(lane[1], (sensor.last_time or lane[1]) + quiet)
        if rnd.random() < self._noise.silence / 3:
            return lane[1] - rnd.choice([1, 2, 3]) * SESSION_TIMEOUT - rnd.choice([-1, 0, 1])
        return lane[1] - (rnd.randint(0, 5_000) if rnd.random() < self._noise.fault else 0)

    # -- the next message of a session

    def _next_body(self, sensor: _Sensor, timestamp: int) -> dict[str, Any]:
        if sensor.queue:
            return sensor.queue.pop()
        if self._noise.early_end and sensor.begun and not sensor.ended and self._rnd.random() < self._noise.early_end:
            return self._early_end(sensor, timestamp)
        if self._rnd.random() < self._noise.fault:
            return self._faulty(sensor, timestamp)
        if sensor.ended:
            return dict(self._rnd.choice(sensor.sent[-3:])) if self._noise.fault else self._reborn(sensor, timestamp)
        return self._regular(sensor, timestamp)

    def _early_end(self, sensor: _Sensor, timestamp: int) -> dict[str, Any]:
        """Returns the end and a few messages before it, in any order. Some of them are lost."""
        rnd = self._rnd
        hand = [self._regular(sensor, timestamp) for _ in range(rnd.randint(1, 4))]
        hand.append({"type": "end", "seq": sensor.seq, "ts": self._event_time(timestamp)})
        sensor.seq, sensor.ended = min(sensor.seq + 1, INT64_MAX), True
        sensor.sent.append(hand[-1])
        rnd.shuffle(hand)
        sensor.queue += hand[1 : rnd.randint(1, len(hand))]
        return hand[0]

    def _reborn(self, sensor: _Sensor, timestamp: int) -> dict[str, Any]:
        """Gives a sensor whose session has ended a new session id, in a stream without such faults."""
        sensor.key, sensor.ended, sensor.begun, sensor.seq = f"{sensor.key[:200]}'", False, False, 0
        return self._regular(sensor, timestamp)

    def _faulty(self, sensor: _Sensor, timestamp: int) -> dict[str, Any]:
        rnd = self._rnd
        fault = rnd.choice(
            ["duplicate", "altered", "gap", "swap", "orphan", "snapshot", "after_end", "restart", "back"]
        )
        if fault in {"duplicate", "altered"} and sensor.sent:
            again = dict(rnd.choice(sensor.sent[-6:]))
            return again if fault == "duplicate" else {**again, "ts": timestamp, "type": "heartbeat"}
        if fault == "gap":
            sensor.seq = min(sensor.seq + rnd.choice([1, 2, 1000]), INT64_MAX)
        elif fault == "swap":
            sensor.queue.append(self._regular(sensor, timestamp))
        elif fault == "orphan":
            sensor.begun = True
        elif fault == "snapshot":
            sensor.begun = False
        elif fault == "after_end":
            sensor.ended = False
        elif fault == "restart":
            sensor.seq, sensor.begun, sensor.ended = rnd.choice([0, 5]), rnd.random() < 0.3, False
        elif fault == "back":
            sensor.seq = max(0, sensor.seq - rnd.randint(1, 3))
        return self._regular(sensor, timestamp)

    def _regular(self, sensor: _Sensor, timestamp: int) -> dict[str, Any]:
        rnd = self._rnd
        kind = rnd.choices(["update", "snapshot", "heartbeat", "end"], [20, 3, 3, 1])[0] if sensor.begun else "snapshot"
        body: dict[str, Any] = {"type": kind, "seq": sensor.seq, "ts": self._event_time(timestamp)}
        if kind in {"update", "snapshot"}:
            body |= self._rows(kind)
        if rnd.random() < self._noise.fault / 8:
            del body["seq"]  # the class `none` allows a missing seq
        sensor.seq = min(sensor.seq + 1, INT64_MAX)
        sensor.begun, sensor.ended = True, kind == "end"
        sensor.sent.append(body)
        return body

    def _event_time(self, timestamp: int) -> int:
        rnd = self._rnd
        if rnd.random() < self._noise.fault:
            return rnd.choice([timestamp + SKEW, -INT64_MAX - 1, 0, timestamp - 10**9])
        return timestamp - rnd.randint(0, 3_000)

    def _rows(self, kind: str) -> dict[str, Any]:
        rnd = self._rnd
        ids = rnd.sample(_IDS, rnd.choice([0, 1, 1, 1, 2, 5]))
        found: dict[str, Any] = {"rows": [self._row(row_id) for row_id in ids]}
        if kind == "update":
            if rnd.random() < 0.3:
                found["deleted"] = [rnd.choice([*_IDS, "never"]) for _ in range(rnd.randint(0, 3))]
            if not ids and rnd.random() < 0.5:
                del found["rows"]
        return found

    def _row(self, row_id: str) -> dict[str, Any]:
        rnd = self._rnd
        row: dict[str, Any] = {"id": row_id}
        for name, kind in COLUMNS.items():
            choice = rnd.random()
            if choice < 0.5:
                row[name] = rnd.choice(_VALUES[kind])
            elif choice < 0.6:
                row[name] = None
        if rnd.random() < 0.15:
            name = rnd.choice(list(_UNDECLARED))
            row[name] = rnd.choice(_UNDECLARED[name])
        return row


def spelled(rnd: random.Random, body: dict[str, Any]) -> bytes:
    """Returns a message as JSON in an unusual form: order, spaces, escapes, unknown and repeated fields."""
    items = list(body.items())
    if rnd.random() < 0.2:
        rnd.shuffle(items)
    if rnd.random() < 0.05:
        items.append(("unknown", rnd.choice([None, 1, [{"rows": 1}], "x"])))
    text = json.dumps(dict(items), ensure_ascii=rnd.random() < 0.5, separators=rnd.choice([(",", ":"), (" , ", " : ")]))
    if rnd.random() < 0.05:
        text = '{"seq":' + rnd.choice(["1", "-1", '"x"', "[[]]"]) + "," + text[1:]
    if rnd.random() < 0.05:
        text = rnd.choice([" ", "\r\n\t"]) + text + rnd.choice([" ", "\n"])
    return text.encode()


class Times(StrEnum):
    """Kinds of Kafka timestamps of a stream."""

    USUAL = "usual"
    SOME_MISSING = "some missing"
    FIRST_MISSING = "first missing"
    ALL_MISSING = "all missing"
    FUTURE = "future"
    NEGATIVE = "negative"
    MIXED = "mixed"


NO_TIME = -1
YEAR_10000 = 253_402_300_800_000
_LATEST = 2**53 - 1  # a little less than the largest of Spark's timestamps


def with_times(rnd: random.Random, messages: Sequence[KafkaMessage], times: Times) -> list[KafkaMessage]:
    """Returns the messages with missing, wrong or very old Kafka timestamps, and the time when bronze read each."""
    clock: dict[tuple[str, int], int] = defaultdict(int)
    missing = {m[:2]: rnd.randint(1, 9) for m in messages}
    shift = START + rnd.choice([0, 3_000, 10**12]) if times is Times.NEGATIVE else 0
    found = []
    for number, message in enumerate(messages):
        place = message[:2]
        clock[place] = max(clock[place], message.timestamp) + rnd.randint(0, 50)
        count = sum(other[:2] == place for other in messages[:number])
        ingested = rnd.choice([clock[place], clock[place], None])
        stamp = _stamp(rnd, times, message.timestamp - shift, clock[place], first=count < missing[place])
        if stamp > message.timestamp:
            ingested = clock[place]
        found.append(message._replace(timestamp=stamp, ingested_at=ingested))
    return found


def _stamp(rnd: random.Random, times: Times, usual: int, ingested: int, *, first: bool) -> int:
    kind = rnd.choice(list(Times)[:-1]) if times is Times.MIXED else times
    if kind is Times.ALL_MISSING or (kind is Times.FIRST_MISSING and first):
        return NO_TIME
    if kind is Times.SOME_MISSING and rnd.random() < 0.3:
        return NO_TIME
    if kind is Times.FUTURE and rnd.random() < 0.15:
        return rnd.choice([ingested + SKEW, ingested + SKEW + 1, ingested + 10**10, YEAR_10000, _LATEST])
    if kind is Times.NEGATIVE and rnd.random() < 0.1:
        return rnd.choice([-2, -5_000, -(10**14), usual - SESSION_TIMEOUT, 0])
    return usual


def with_silences(rnd: random.Random, messages: Sequence[KafkaMessage]) -> list[Fact]:
    """Returns the messages, with a silence of the topic-partition after some of them."""
    times: dict[tuple[str, int], int] = defaultdict(lambda: rnd.choice([0, START]))
    facts: list[Fact] = []
    for message in messages:
        place = message[:2]
        if message.timestamp != NO_TIME and message.timestamp <= (message.ingested_at or message.timestamp) + SKEW:
            times[place] = max(times[place], message.timestamp)
        facts.append(message)
        lengths = [1, 3_000, 20_000, 600_000, SESSION_TIMEOUT, 2 * SESSION_TIMEOUT]
        silences = sorted(rnd.choice(lengths) + rnd.choice([0, 1]) for _ in range(rnd.choice([0, 0, 0, 0, 1, 2])))
        facts.extend(Silence(*place, message.offset, times[place] + lasted, lasted) for lasted in silences)
    return facts


def messages_of(facts: Sequence[Fact]) -> list[KafkaMessage]:
    """Returns the messages without the silences."""
    return [fact for fact in facts if not isinstance(fact, Silence)]


def cut(rnd: random.Random, messages: list[T], batches: int) -> Iterator[list[T]]:
    """Splits the stream into at most this many consecutive micro-batches, none of them empty."""
    inside = range(1, len(messages))
    cuts = sorted(rnd.sample(inside, min(batches - 1, len(inside))))
    for start, end in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        yield messages[start:end]
