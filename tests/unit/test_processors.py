"""One processor, seen from its user's side: timers and expiry at their boundaries, failures, limits, states."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pytest

from sessionlake.errors import IntegrityViolationError, LakeError, ProcessorError
from sessionlake.processors import NEVER, Emitted, Message, Processor, Session, Timer
from sessionlake.processors.shard_state import FORMAT, ProcessorShardState, SessionState, SessionStateCodec
from sessionlake.processors.testing import TOPIC, Sent, fold, run
from sessionlake.protocol.arrow import build_session_key
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import OnViolation

HOUR = 3_600_000
"""The session timeout."""
COLUMNS = {"x": "bigint", "s": "string"}


@dataclass
class Notes:
    messages: int = 0
    text: str = ""
    extra: list[int] = field(default_factory=list)


class Scripted(Processor[Notes]):
    """Does what a message's row tells it to."""

    state = Notes
    output: ClassVar = {"what": "string", "n": "bigint", "at": "timestamp"}

    def __init__(self, late: Callable[[Notes, Timer], Iterable[Emitted]] | None = None) -> None:
        self._late = late

    def on_message(self, state: Notes, message: Message) -> Iterable[Emitted]:
        state.messages += 1
        for row in message.rows:
            kind, x = row.values.get("s"), row.values.get("x")
            if kind == "raise":
                raise RuntimeError("as told")
            if kind == "timer":
                yield Timer(x, row.id)
            elif kind == "grow":
                state.text = "x" * x
            elif kind == "many":
                yield from ({"n": n} for n in range(x))
            elif kind == "type":
                state.extra = "no list"
        yield {"what": message.type, "n": state.messages, "at": message.stream_time}

    def on_timeout(self, state: Notes, timer: Timer) -> Iterable[Emitted]:
        yield {"what": "expired" if timer.expired else f"timer {timer.name}", "n": state.messages, "at": timer.at}
        if self._late:
            yield from self._late(state, timer)


class Feed:
    """Messages of sessions, with rising seqs."""

    def __init__(self) -> None:
        self.messages: list[Sent] = []
        self._seqs: dict[str, int] = {}

    def says(self, session: str, time: int, *told: tuple[Any, ...], kind: str | None = None) -> Feed:
        """An update, or first a snapshot, of rows `id, s, x`; or another kind of message."""
        seq = self._seqs[session] = self._seqs.get(session, -1) + 1
        kind = kind or ("update" if seq else "snapshot")
        body: dict[str, Any] = {"type": kind, "seq": seq, "ts": time}
        if kind in {"snapshot", "update"}:
            body["rows"] = [dict(zip(("id", "s", "x"), row, strict=False)) for row in told]
        self.messages.append(Sent(session, body, time))
        return self

    def again(self, session: str, time: int) -> Feed:
        """A new life."""
        del self._seqs[session]
        return self.says(session, time)

    def run(self, processor: Processor[Any] | None = None, **settings: Any) -> Any:
        settings.setdefault("columns", COLUMNS)
        return run(processor or Scripted(), self.messages, **settings)

    def told(self, processor: Processor[Any] | None = None, session: str = "s") -> list[tuple[str, int]]:
        """What the session's records say, and when."""
        return [(row["what"], row["at"]) for row in self.run(processor).rows if row["session_id"] == session]


@pytest.fixture
def feed() -> Feed:
    return Feed()


# -- timers


def test_a_timer_does_not_fire_before_stream_time_has_passed_it(feed):
    feed.says("s", 0, ("t", "timer", 1000)).says("other", 1000)
    assert feed.told() == [("snapshot", 0)]


def test_a_timer_fires_at_the_first_moment_past_it_though_the_session_is_silent(feed):
    feed.says("s", 0, ("t", "timer", 1000)).says("other", 1001)
    assert feed.told() == [("snapshot", 0), ("timer t", 1000)]


def test_a_message_at_a_timer_s_very_time_comes_before_it(feed):
    feed.says("s", 0, ("t", "timer", 1000)).says("s", 1000).says("s", 1001)
    assert feed.told() == [("snapshot", 0), ("update", 1000), ("timer t", 1000), ("update", 1001)]


def test_timers_fire_by_time_then_by_name(feed):
    feed.says("s", 0, ("b", "timer", 10), ("a", "timer", 10), ("c", "timer", 5)).says("s", 50)
    assert [what for what, _ in feed.told()] == ["snapshot", "timer c", "timer a", "timer b", "update"]


def test_a_timer_of_the_same_name_takes_the_place_of_the_one_before_and_never_takes_it_away(feed):
    feed.says("s", 0, ("a", "timer", 10), ("b", "timer", 10))
    feed.says("s", 1, ("a", "timer", 30), ("b", "timer", NEVER)).says("s", 100)
    assert feed.told() == [("snapshot", 0), ("update", 1), ("timer a", 30), ("update", 100)]


def test_a_timer_in_the_past_fires_after_the_message_that_sets_it(feed):
    feed.says("s", 500, ("a", "timer", 10)).says("s", 500)
    assert feed.told() == [("snapshot", 500), ("timer a", 10), ("update", 500)]


def test_a_timer_may_set_the_next_one_but_not_one_for_its_own_time(feed):
    feed.says("s", 0, ("tick", "timer", 100)).says("s", 350)
    ticking = Scripted(lambda _, timer: [] if timer.expired else [Timer(timer.at + 100, "tick")])
    assert [what for what, _ in feed.told(ticking)] == ["snapshot", *["timer tick"] * 3, "update"]
    with pytest.raises(ProcessorError, match=r"\(a timer, at 100\): ValueError: a timer cannot be set for 100"):
        feed.run(Scripted(lambda _, timer: [Timer(timer.at)]))


def test_records_of_a_timer_follow_those_of_the_message_before_it(feed):
    feed.says("s", 0, ("t", "timer", 5)).says("s", 10)
    places = [(row["what"], row["_offset"], row["_position"], row["ordinal"]) for row in feed.run().rows]
    assert places == [("snapshot", 0, 0, 0), ("timer t", 0, 0, 1), ("update", 1, 1, 0)]


# -- the end of a life


def test_expiry_is_reported_once_when_no_message_can_take_it_back_and_bears_the_moment_of_expiry(feed):
    feed.says("s", 0).says("other", 2 * HOUR)
    assert feed.told() == [("snapshot", 0)]
    feed.says("other", 2 * HOUR + 1)
    assert feed.told() == [("snapshot", 0), ("expired", HOUR)]
    assert feed.run().state("s") is None


def test_a_message_that_takes_the_expiry_back_goes_on_with_the_state(feed):
    feed.says("s", 0).says("other", 2 * HOUR).says("s", HOUR)
    found = feed.run()
    assert [row["what"] for row in found.rows if row["session_id"] == "s"] == ["snapshot", "update"]
    assert found.state("s").messages == 2


def test_a_message_that_begins_a_new_life_ends_the_old_one_first_and_finds_a_fresh_state(feed):
    feed.says("s", 0).again("s", HOUR + 1)
    assert [(row["what"], row["n"]) for row in feed.run().rows] == [("snapshot", 1), ("expired", 1), ("snapshot", 1)]


def test_timers_up_to_the_last_moment_of_a_life_fire_and_later_ones_go_with_it(feed):
    feed.says("s", 0, ("in", "timer", 2 * HOUR), ("out", "timer", 2 * HOUR + 1)).says("other", 3 * HOUR)
    assert feed.told() == [("snapshot", 0), ("timer in", 2 * HOUR), ("expired", HOUR)]


def test_timers_past_the_last_moment_of_a_life_do_not_fire_for_a_late_message_of_a_new_one_either(feed):
    feed.says("s", 0, ("in", "timer", 2 * HOUR), ("out", "timer", 2 * HOUR + 1)).again("s", 3 * HOUR)
    assert feed.told() == [("snapshot", 0), ("timer in", 2 * HOUR), ("expired", HOUR), ("snapshot", 3 * HOUR)]


def test_a_message_with_an_old_timestamp_ends_the_life_as_it_comes_and_timers_passed_by_then_have_fired(feed):
    feed.says("other", 5 * HOUR).says("s", 5 * HOUR, ("in", "timer", 5 * HOUR + 5), ("out", "timer", 5 * HOUR + 6))
    feed.says("other", 5 * HOUR + 6).says("s", HOUR).says("other", 6 * HOUR)
    told = [("snapshot", 5 * HOUR), ("timer in", 5 * HOUR + 5), ("update", 5 * HOUR + 6), ("expired", 2 * HOUR)]
    assert feed.told() == told


def test_a_session_that_has_ended_does_not_expire_and_its_state_goes(feed):
    feed.says("s", 0).says("s", 10, kind="end").says("other", 3 * HOUR)
    found = feed.run()
    assert [row["what"] for row in found.rows if row["session_id"] == "s"] == ["snapshot", "end"]
    assert list(found.states) == [(TOPIC, 0, "other")]


def test_no_timer_can_be_set_when_the_session_is_over(feed):
    feed.says("s", 0).says("other", 3 * HOUR)
    with pytest.raises(ProcessorError, match=r"the session's expiry, at 3600000\): ValueError: .*the session is over"):
        feed.run(Scripted(lambda _, timer: [Timer(timer.at + 1)]))


def test_what_class_window_releases_is_given_at_the_time_of_its_release_and_between_the_timers(feed):
    capture = CaptureSettings(columns=COLUMNS, integrity="window", lateness="1 s")
    feed.says("s", 0, ("t", "timer", 2000)).says("s", 1001).says("s", 2500)
    feed.says("other", 3 * HOUR)
    rows = [(row["what"], row["at"]) for row in feed.run(capture=capture).rows if row["session_id"] == "s"]
    released = 2500 + HOUR + 1  # by expiry, in the first moment past it
    assert rows == [
        ("snapshot", 1001),
        ("timer t", 2000),
        ("update", 2500),
        ("update", released),
        ("expired", 2500 + HOUR),
    ]


# -- failures


def test_one_that_raises_under_fail_names_processor_session_place_and_error(feed):
    feed.says("s", 0).says("other", 1).says("s", 2, ("r", "raise"))
    text = (
        "processor test failed: session 's', topic capture.test, partition 0, offset 2: RuntimeError: as told. "
        "Nothing of the batch was committed."
    )
    with pytest.raises(ProcessorError) as raised:
        feed.run()
    assert str(raised.value).startswith(text)


def test_of_several_failures_in_a_batch_the_first_by_place_is_named_however_sessions_are_sharded(feed):
    for session in "abcdef":
        feed.says(session, 0)
    for session in "fedcba":
        feed.says(session, 0, ("r", "raise"))
    for shards in (1, 3):
        with pytest.raises(ProcessorError, match=r"session 'f', .* offset 6"):
            fold(Scripted(), [feed.messages], CaptureSettings(columns=COLUMNS), shards)


def test_one_that_raises_under_record_has_not_seen_the_message_and_the_session_goes_on(feed):
    feed.says("s", 0).says("s", 1, ("t", "timer", 5), ("r", "raise")).says("s", 10)
    found = feed.run(on_error="record")
    assert [(row["what"], row["n"]) for row in found.rows] == [("snapshot", 1), ("update", 2)]
    (error,) = found.errors
    assert (error["processor"], error["session_id"], error["_offset"]) == ("test", "s", 1)
    assert (error["event"], error["action"], error["error"]) == ("message", "recorded", "RuntimeError: as told")
    assert (found.counts["applied"], found.counts["quarantined"]) == (2, 1)


def test_one_that_raises_under_isolate_is_stopped_for_that_session_until_its_next_life(feed):
    feed.says("s", 0).says("s", 1, ("r", "raise")).says("s", 2).says("other", 3).again("s", 2 * HOUR)
    found = feed.run(on_error="isolate")
    assert [(row["session_id"], row["what"], row["n"]) for row in found.rows] == [
        ("other", "snapshot", 1),
        ("s", "snapshot", 1),
        ("s", "snapshot", 1),
    ]
    assert [(row["_offset"], row["action"]) for row in found.errors] == [(1, "isolated"), (2, "skipped")]
    assert (found.counts["applied"], found.counts["quarantined"]) == (3, 2)


def test_without_a_policy_of_its_own_it_follows_the_topic_s(feed):
    feed.says("s", 0, ("r", "raise"))
    capture = CaptureSettings(columns=COLUMNS, on_violation=OnViolation.ISOLATE)
    assert [row["action"] for row in feed.run(capture=capture).errors] == ["isolated"]


def test_a_violation_of_the_stream_s_integrity_is_no_failure_of_the_processor(feed):
    feed.says("s", 0)
    feed.messages.append(Sent("s", {"type": "heartbeat", "seq": 2, "ts": 0}))
    with pytest.raises(IntegrityViolationError, match="gap"):
        feed.run()


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"n": "7"}, r"Expected `int \| null`, got `str` - at `\$.n`"),
        ({"n": 2**63}, "Expected `int` <= 9223372036854775807"),
        ({"what": "\ud800"}, "surrogates not allowed"),
        ({"nope": 1}, "unknown field `nope`"),
        (["n", 1], "yields mappings of column to value, or timers; found"),
        (Timer("soon"), "a timer has a time in whole milliseconds and a name"),
        (Timer(2**63), "a timer's time is an int64"),
    ],
)
def test_a_record_that_does_not_fit_is_a_failure_of_that_message(feed, record, said):
    class Odd(Scripted):
        def on_message(self, state: Notes, message: Message) -> Iterable[Emitted]:
            del state, message
            return [record]

    with pytest.raises(ProcessorError, match=said):
        feed.says("s", 0).run(Odd())


def test_a_timestamp_that_sql_cannot_tell_becomes_the_nearest(feed):
    class Early(Scripted):
        def on_message(self, state: Notes, message: Message) -> Iterable[Emitted]:
            del state
            yield {"at": -(2**63) if message.seq == 0 else 2**63 - 1}

    ats = [row["at"] for row in feed.says("s", 0).says("s", 1).run(Early()).rows]
    assert ats == [-62_135_596_800_000, 253_402_300_799_999]


# -- limits and states


def test_a_state_of_just_the_limit_is_kept_and_one_byte_more_is_a_failure(feed):
    notes = Notes(1, "x" * 100)
    size = len(msgspec.msgpack.encode(notes))
    feed.says("s", 0, ("g", "grow", 100))
    assert feed.run(max_state_bytes=size).state("s") == notes
    with pytest.raises(
        ProcessorError, match=rf"the session's state has {size} bytes, max_state_bytes allows {size - 1}"
    ):
        feed.run(max_state_bytes=size - 1)


def test_timers_count_as_state(feed):
    feed.says("s", 0, *((f"{n}", "timer", HOUR) for n in range(100)))
    with pytest.raises(ProcessorError, match="max_state_bytes"):
        feed.run(max_state_bytes=500)


def test_as_many_records_as_allowed_are_written_and_one_more_is_a_failure(feed):
    feed.says("s", 0, ("m", "many", 4))
    assert len(feed.run(max_records_per_call=5).rows) == 5
    with pytest.raises(ProcessorError, match="more than 4 records of one call"):
        feed.run(max_records_per_call=4)


def test_a_state_that_does_not_fit_its_type_is_a_failure_of_the_message_that_left_it_so(feed):
    feed.says("s", 0).says("s", 1, ("t", "type")).says("s", 2)
    with pytest.raises(ProcessorError, match=r"offset 1: TypeError: the state does not fit Notes: Expected `array`"):
        feed.run()


def test_a_processor_that_keeps_something_outside_its_state_cannot_tell_batches_by_it_unnoticed(feed):
    class Leaky(Scripted):
        def on_message(self, state: Notes, message: Message) -> Iterable[Emitted]:
            del message
            state.leak = getattr(state, "leak", 0) + 1
            yield {"n": state.leak}

    found = feed.says("s", 0).says("s", 1).run(Leaky())
    assert [row["n"] for row in found.rows] == [1, 1]

    class Forgetful(Scripted):
        calls = 0

        def on_message(self, state: Notes, message: Message) -> Iterable[Emitted]:
            del state, message
            Forgetful.calls += 1
            yield {"n": Forgetful.calls}

    with pytest.raises(AssertionError, match="depends on how messages are cut into batches"):
        feed.run(Forgetful())


class Newer(msgspec.Struct):
    count: int
    label: str = "new"


class Migrating(Processor[Newer]):
    state = Newer
    output: ClassVar = {"n": "bigint"}
    version = 3

    def initial(self, session: Session) -> Newer:
        return Newer(0, session.topic)

    def on_message(self, state: Newer, message: Message) -> Iterable[Emitted]:
        del state, message
        return ()

    def migrate(self, old: Any, version: int) -> Newer:
        if version == 1:
            return Newer(old["messages"], "one")
        raise ValueError(f"no idea of {version}")


def test_a_state_is_what_it_was_before_it_was_stored():
    codec = SessionStateCodec("p", Migrating())
    assert codec.decode_and_migrate_state(codec.encode_state(Newer(7, "ü\x00")), 3, "s") == Newer(7, "ü\x00")


def test_an_old_state_is_migrated_on_read():
    old = msgspec.msgpack.encode(Notes(5, "t"))
    assert SessionStateCodec("p", Migrating()).decode_and_migrate_state(old, 1, "s") == Newer(5, "one")


@pytest.mark.parametrize(
    ("state", "version", "said"),
    [
        ({"messages": 1}, 2, r"processor p: the state of session 's' is of version 2, .* version 3 .*no idea of 2"),
        ({}, 1, r"cannot migrate it \(KeyError: 'messages'\)\. Correct the class's `migrate`"),
        (
            {"count": 1},
            4,
            r"is of version 4, which is newer .* of version 3\. .*Use version 4 of the class, or a newer one",
        ),
        (
            {"count": "1"},
            3,
            r"its fields are not those of Newer \(.*\)\. Raise the class's `version` to 4 and write `migrate`",
        ),
    ],
)
def test_a_state_that_cannot_be_read_is_reported_with_session_version_and_remedy(state, version, said):
    with pytest.raises(LakeError, match=said):
        SessionStateCodec("p", Migrating()).decode_and_migrate_state(msgspec.msgpack.encode(state), version, "s")


KEY = build_session_key("t", 0, "s")


def test_a_memory_of_another_format_is_refused_by_name():
    stored = ProcessorShardState(sessions={KEY: SessionState(1, b"", 0, 0, 0)}).encode_processor_state("p", 4)
    assert ProcessorShardState.decode_processor_state(stored).sessions[KEY].life == 0
    with pytest.raises(LakeError, match=r"processor p: its stored state has the format 'sessionlake.processor/9'"):
        ProcessorShardState.decode_processor_state(stored.replace(FORMAT.encode(), b"sessionlake.processor/9"))
    with pytest.raises(LakeError, match="cannot be read"):
        ProcessorShardState.decode_processor_state(b"\x81")
