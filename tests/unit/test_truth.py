"""The ground-truth judge: one timeline a rule. A token is a message: S, U, H or E (snapshot, update, heartbeat, end)
with its seq, then optionally `t` and its event time, and `@` and its Kafka time, both in milliseconds after the start.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from sessionlake.errors import ConfigError, IntegrityViolationError, LakeError, UsageError
from sessionlake_lab.truth import (
    CaptureRules,
    ExpectedTables,
    GroundTruth,
    KafkaMessage,
    TruthViolationError,
    hash_session_table,
    hash_session_tables,
    read_expected_tables,
    write_expected_tables,
)

TOPIC = "capture.a"
START = 1_700_000_000_000
TIMEOUT = 1_000
COLUMNS = {"price": "double", "qty": "bigint", "status": "string"}
KINDS = {"S": "snapshot", "U": "update", "H": "heartbeat", "E": "end"}


def rules(integrity: str = "strict", on_violation: str = "isolate", **more: Any) -> CaptureRules:
    defaults: dict[str, Any] = {"lateness_ms": 10, "gap_timeout_ms": 100, "session_timeout_ms": TIMEOUT}
    return CaptureRules(columns=COLUMNS, integrity=integrity, on_violation=on_violation, **(defaults | more))


def message(
    body: Any, offset: int = 0, *, at: int = 0, key: str = "s", topic: str = TOPIC, partition: int = 0
) -> KafkaMessage:
    value = body if isinstance(body, bytes) else json.dumps(body).encode()
    return KafkaMessage(topic, partition, offset, START + at, key.encode(), value)


def timeline(tokens: str) -> list[KafkaMessage]:
    """Snapshots and updates each write one row named after their seq, so that what was applied can be seen."""
    messages = []
    for offset, token in enumerate(tokens.split()):
        kind, seq, ts, at = re.fullmatch(r"([SUHE])(\d+)(?:t(\d+))?(?:@(\d+))?", token).groups()
        body: dict[str, Any] = {"type": KINDS[kind], "seq": int(seq), "ts": START + int(ts or 0)}
        if kind in "SU":
            body["rows"] = [{"id": f"r{seq}", "qty": int(seq)}]
        messages.append(message(body, offset, at=int(at or 0)))
    return messages


def judge(messages: list[KafkaMessage], by: CaptureRules) -> ExpectedTables:
    truth = GroundTruth(by)
    for one in messages:
        truth.judge_message(one)
    return truth.finish_and_return_tables()


def fates(tables: ExpectedTables, messages: list[KafkaMessage]) -> str:
    """What became of each message: ok, dup, held or its quarantine reason."""
    reasons = {row["offset"]: row["reason"] for row in tables.quarantine}
    dropped = {row["offset"] for row in tables.integrity_events if row["action"] == "dropped"}
    changed = {row["_offset"] for row in tables.session_changes}

    def fate(one: KafkaMessage) -> str:
        if one.offset in reasons or one.offset in dropped:
            return str(reasons.get(one.offset, "dup"))
        silent = json.loads(one.value or b"")["type"] in {"heartbeat", "end"}
        return "ok" if silent or one.offset in changed else "held"

    return " ".join(fate(one) for one in messages)


def events(tables: ExpectedTables) -> str:
    return " ".join(f"{e['event']}/{e['action']}@{e['offset']}" for e in tables.integrity_events)


def session(tables: ExpectedTables) -> dict[str, Any]:
    return tables.sessions[TOPIC, 0, "s"]


def rows(tables: ExpectedTables) -> dict[str, dict[str, Any]]:
    return tables.session_rows[TOPIC, 0, "s"]


# class, policy, timeline, fates, events, status, next_seq, gaps, duplicates
TIMELINES = [
    ("strict", "fail", "S0 U1 H2 E3", "ok ok ok ok", "", "ended", 4, 0, 0),
    ("strict", "fail", "S7 U8", "ok ok", "", "open", 9, 0, 0),
    ("strict", "fail", "S0 U1 U1 U0 S0 U2", "ok ok dup dup dup ok",
     "duplicate/dropped@2 duplicate/dropped@3 duplicate/dropped@4", "open", 3, 0, 3),
    ("strict", "isolate", "S0 U2", "ok gap", "gap/isolated@1", "broken", 1, 1, 0),
    ("strict", "isolate", "S0 U2 U1 U3 H4 E5", "ok gap session_broken session_broken session_broken session_broken",
     "gap/isolated@1", "broken", 1, 1, 0),
    ("strict", "isolate", "S0 U1 U3 U0 S1 S2 U3", "ok ok gap dup dup ok ok",
     "gap/isolated@2 duplicate/dropped@3 duplicate/dropped@4 healed/applied@5", "open", 4, 1, 2),
    ("strict", "isolate", "S0 U2 S9 U10", "ok gap ok ok", "gap/isolated@1 healed/applied@2", "open", 11, 1, 0),
    ("strict", "isolate", "S0 S2 U3", "ok ok ok", "gap/isolated@1", "open", 4, 1, 0),
    ("strict", "isolate", "S0 E2", "ok gap", "gap/isolated@1", "broken", 1, 1, 0),
    ("strict", "isolate", "U4 U5 S5 U6", "orphan session_broken ok ok",
     "orphan/isolated@0 healed/applied@2", "open", 7, 0, 0),
    ("strict", "isolate", "U4 S0 U1", "orphan ok ok", "orphan/isolated@0 healed/applied@1", "open", 2, 0, 0),
    ("strict", "isolate", "E0", "orphan", "orphan/isolated@0", "broken", None, 0, 0),
    ("strict", "isolate", "H0 H0", "orphan session_broken", "orphan/isolated@0", "broken", None, 0, 0),
    ("strict", "isolate", "S0 E1 U2 U1 U5 S6 U7", "ok ok after_end dup after_end after_end after_end",
     "after_end/isolated@2 duplicate/dropped@3 after_end/isolated@4 after_end/isolated@5 after_end/isolated@6",
     "ended", 2, 0, 1),
    ("strict", "record", "S0 U2 U1 U3", "ok ok dup ok", "gap/recorded@1 duplicate/dropped@2", "open", 4, 1, 1),
    ("strict", "record", "S0 S3 U4", "ok ok ok", "gap/recorded@1", "open", 5, 1, 0),
    ("strict", "record", "U4 U5 U4", "ok ok dup", "orphan/recorded@0 duplicate/dropped@2", "open", 6, 0, 1),
    ("strict", "record", "S0 E1 U2 U9", "ok ok ok ok", "after_end/recorded@2 after_end/recorded@3", "ended", 10, 0, 0),
    ("strict", "record", "E3", "ok", "orphan/recorded@0", "ended", 4, 0, 0),
    ("order", "fail", "S0 U5 U3 U5 U6", "ok ok dup dup ok",
     "gap/applied@1 duplicate/dropped@2 duplicate/dropped@3", "open", 7, 1, 2),
    ("order", "fail", "S0 S4 U5", "ok ok ok", "gap/applied@1", "open", 6, 1, 0),
    ("order", "isolate", "U0 U1 S1 U4", "orphan session_broken ok ok",
     "orphan/isolated@0 healed/applied@2 gap/applied@3", "open", 5, 1, 0),
    ("order", "record", "U0 U1", "ok ok", "orphan/recorded@0", "open", 2, 0, 0),
    ("order", "isolate", "S0 E1 U9", "ok ok after_end", "after_end/isolated@2", "ended", 2, 0, 0),
    ("none", "fail", "U5 U5 U1 S0", "ok ok ok ok", "", "open", 6, 0, 0),
    ("none", "isolate", "U0 E1 U1", "ok ok after_end", "after_end/isolated@2", "ended", 2, 0, 0),
    ("once", "fail", "U0 U3 U1 U1 U3 U2", "ok ok ok dup dup ok",
     "gap/applied@1 duplicate/dropped@3 duplicate/dropped@4", "open", 4, 1, 2),
    ("once", "isolate", "S0 U2 H3@100", "ok ok ok", "gap/applied@1", "open", 4, 1, 0),
    ("once", "isolate", "S0 U2 H3@101 U1@101 S4@102", "ok ok session_broken session_broken ok",
     "gap/applied@1 gap/isolated@1 healed/applied@4", "open", 5, 1, 0),
    ("once", "isolate", "S0 U2 U1@50 H3@101", "ok ok ok ok", "gap/applied@1", "open", 4, 1, 0),
    ("once", "isolate", "S0 S2 H3@101", "ok ok ok", "gap/applied@1 gap/isolated@1", "open", 4, 1, 0),
    ("once", "record", "S0 U2 U1@101", "ok ok ok", "gap/applied@1 gap/recorded@1", "open", 3, 1, 0),
    ("once", "isolate", "S0 E3 U2 H1 E3 U4", "ok ok ok ok dup after_end",
     "gap/applied@1 duplicate/dropped@4 after_end/isolated@5", "ended", 4, 1, 1),
    ("once", "isolate", "S0 U5 E2 U3 U1", "ok ok ok after_end ok", "gap/applied@1 after_end/isolated@3",
     "ended", 6, 1, 0),
    ("once", "isolate", "S0 E2 U3@101 U1@101", "ok ok after_end ok",
     "gap/applied@1 gap/isolated@1 after_end/isolated@2", "ended", 3, 1, 0),
    ("window", "fail", "S0t0 U2t5 U1t3 H3t20", "ok ok ok ok", "", "open", 3, 0, 0),
    ("window", "fail", "S0t0 U1t10 U2t11", "ok held held", "", "open", 1, 0, 0),
    ("window", "fail", "S0t0 U1t0 U1t5 H2t20", "ok ok dup ok", "duplicate/dropped@2", "open", 2, 0, 1),
    ("window", "fail", "S0t20 U1t10 U2t9", "held held late", "late/quarantined@2", "open", None, 0, 0),
    ("window", "fail", "S0t0 U4t1 H5t20", "ok ok ok", "gap/applied@1", "open", 5, 1, 0),
    ("window", "isolate", "U0t0 H1t20 S2t21 H3t40", "orphan session_broken ok ok",
     "orphan/isolated@0 healed/applied@2", "open", 3, 0, 0),
    ("window", "isolate", "U0t0 S1t1 H2t20", "orphan ok ok", "orphan/isolated@0 healed/applied@1", "open", 2, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("integrity", "policy", "tokens", "fate", "happened", "status", "next_seq", "gaps", "duplicates"), TIMELINES
)
def test_timeline(integrity, policy, tokens, fate, happened, status, next_seq, gaps, duplicates):
    messages = timeline(tokens)
    tables = judge(messages, rules(integrity, policy))
    assert fates(tables, messages) == fate
    assert events(tables) == happened
    row = session(tables)
    assert (row["status"], row["next_seq"], row["gaps"], row["duplicates"]) == (status, next_seq, gaps, duplicates)


@pytest.mark.parametrize(("integrity", "tokens"), sorted({(case[0], case[2]) for case in TIMELINES}))
def test_every_message_is_accounted_for(integrity, tokens):
    messages = timeline(tokens)
    for policy in ("isolate", "record"):
        tables = judge(messages, rules(integrity, policy))
        counts = tables.counts[TOPIC, 0]
        assert counts["messages"] == len(messages) == sum(counts.values()) - counts["messages"]
        assert counts["applied"] == session(tables)["messages"]
        assert counts["quarantined"] == len(tables.quarantine)


@pytest.mark.parametrize(
    ("integrity", "tokens", "violation"),
    [
        ("strict", "S0 U2", ("gap", 1, 1, 2)),
        ("strict", "S0 S2", ("gap", 1, 1, 2)),
        ("strict", "U5", ("orphan", 0, None, 5)),
        ("order", "H5", ("orphan", 0, None, 5)),
        ("strict", "S0 E1 U2", ("after_end", 2, 2, 2)),
        ("order", "S0 E1 U7", ("after_end", 2, 2, 7)),
        ("once", "S0 U3 U1 H4@101", ("gap", 1, 2, 3)),
        ("window", "U0t0 H1t20", ("orphan", 0, None, 0)),
    ],
)
def test_fail_stops_at_the_violation_and_names_it(integrity, tokens, violation):
    messages = timeline(tokens)
    truth = GroundTruth(rules(integrity, "fail"))
    for one in messages[:-1]:
        truth.judge_message(one)
    with pytest.raises(
        TruthViolationError, match=f"{violation[0]} of class {integrity}: session 's' in capture.a"
    ) as caught:
        truth.judge_message(messages[-1])
    error = caught.value
    assert isinstance(error, IntegrityViolationError)
    assert (error.event, error.offset, error.expected, error.actual) == violation
    assert (error.integrity, error.session_id, error.topic, error.partition) == (integrity, "s", TOPIC, 0)


@pytest.mark.parametrize(("ending", "seqs"), [("U2", (1, 2)), ("S2", (1, 2)), ("S1 U3", (2, 3))])
def test_gap_event_names_what_was_expected_and_what_came(ending, seqs):
    gap = judge(timeline(f"S0 {ending}"), rules()).integrity_events[0]
    assert (gap["expected_seq"], gap["actual_seq"]) == seqs
    assert (gap["topic"], gap["partition"], gap["session_id"], gap["kafka_timestamp"]) == (TOPIC, 0, "s", START)


# -- tables


def update(seq: int, rows: list[Any] | None = None, deleted: list[str] | None = None) -> dict[str, Any]:
    fields = {"rows": rows, "deleted": deleted}
    return {"type": "update", "seq": seq, "ts": START + seq} | {k: v for k, v in fields.items() if v is not None}


def snapshot(seq: int, rows: list[Any]) -> dict[str, Any]:
    return {"type": "snapshot", "seq": seq, "ts": START + seq, "rows": rows}


def judged(*bodies: dict[str, Any], by: CaptureRules | None = None) -> ExpectedTables:
    return judge([message(body, offset) for offset, body in enumerate(bodies)], by or rules(on_violation="fail"))


def plain(tables: ExpectedTables) -> dict[str, dict[str, Any]]:
    return {row_id: {name: row[name] for name in COLUMNS} for row_id, row in rows(tables).items()}


def test_absent_column_keeps_its_value_and_null_makes_it_null():
    tables = judged(
        snapshot(0, [{"id": "a", "price": 1, "qty": 2, "status": "X"}]),
        update(1, [{"id": "a", "qty": 3, "status": None}]),
    )
    assert plain(tables) == {"a": {"price": 1.0, "qty": 3, "status": None}}
    assert tables.session_changes[-1]["_set"] == ["qty", "status"]


def test_new_id_in_an_update_is_an_insert_and_a_deleted_one_starts_from_null():
    first = {"id": "a", "price": 1.5, "qty": 2, "status": "X"}
    tables = judged(snapshot(0, [first]), update(1, deleted=["a", "unknown"]), update(2, [{"id": "a", "qty": 5}]))
    assert plain(tables) == {"a": {"price": None, "qty": 5, "status": None}}


def test_rows_apply_before_deleted():
    tables = judged(snapshot(0, []), update(1, [{"id": "a", "qty": 1}, {"id": "b", "qty": 1}], ["a"]))
    assert list(rows(tables)) == ["b"]
    assert [(c["change"], c["row_id"], c["ordinal"]) for c in tables.session_changes] == [
        ("clear", None, 0), ("upsert", "a", 0), ("upsert", "b", 1), ("delete", "a", 2),
    ]  # fmt: skip


def test_snapshot_replaces_the_table_and_absent_columns_are_null():
    tables = judged(
        snapshot(0, [{"id": "a", "qty": 1}, {"id": "b", "qty": 1}]),
        update(1, [{"id": "b", "price": 2.0}]),
        snapshot(2, [{"id": "b", "qty": 9}]),
    )
    assert plain(tables) == {"b": {"price": None, "qty": 9, "status": None}}
    assert rows(tables)["b"]["_epoch"] == session(tables)["epoch"] == 2


def test_snapshot_ignores_deleted_and_heartbeat_and_end_ignore_rows():
    odd = {"rows": [{"id": "z"}], "deleted": 5}
    tables = judged(
        snapshot(0, [{"id": "a"}]) | {"deleted": ["a"]},
        {"type": "heartbeat", "seq": 1, "ts": START} | odd,
        {"type": "end", "seq": 2, "ts": START + 77} | odd,
    )
    assert list(rows(tables)) == ["a"]
    assert session(tables)["ended_at"] == START + 77


def test_row_bookkeeping_is_that_of_the_last_message_that_upserted_it():
    tables = judged(snapshot(3, [{"id": "a"}, {"id": "b"}]), update(4, [{"id": "b", "qty": 1}]))
    keep = ("_epoch", "_seq", "_ts", "_offset")
    assert [[rows(tables)[r][k] for k in keep] for r in "ab"] == [[0, 3, START + 3, 0], [0, 4, START + 4, 1]]


def test_changes_carry_every_column_of_the_design():
    tables = judged(snapshot(0, [{"id": "a", "qty": 1, "extra": True}]), update(1, deleted=["a"]))
    clear, upsert, delete = tables.session_changes
    common = {
        "topic": TOPIC, "session_id": "s", "price": None, "status": None, "_epoch": 0, "partition": 0,
        "kafka_timestamp": START,
    }  # fmt: skip
    one = common | {
        "_seq": 0, "_ts": START, "_offset": 0, "_position": 0, "_applied_at": START, "_applied_by": 0
    }  # fmt: skip
    assert clear == one | {"row_id": None, "qty": None, "_rescued": None, "change": "clear", "_set": [], "ordinal": 0}
    assert upsert == one | {
        "row_id": "a", "qty": 1, "_rescued": '{"extra":true}', "change": "upsert", "_set": list(COLUMNS), "ordinal": 1,
    }  # fmt: skip
    assert delete == common | {
        "row_id": "a", "qty": None, "_rescued": None, "change": "delete", "_set": [], "ordinal": 0,
        "_seq": 1, "_ts": START + 1, "_offset": 1, "_position": 1, "_applied_at": START, "_applied_by": 1,
    }  # fmt: skip


def test_rescued_is_sorted_compact_json_and_always_set():
    odd = {"id": "a", "z": {"b": 1.0, "a": [1e16, 10**30]}, "é": None}
    tables = judged(snapshot(0, [odd]))
    assert rows(tables)["a"]["_rescued"] == '{"z":{"a":[1e+16,' + str(10**30) + '],"b":1.0},"é":null}'
    tables = judged(snapshot(0, [odd]), update(1, [{"id": "a", "qty": 1}]))
    assert rows(tables)["a"]["_rescued"] is None


def test_declared_order_rules_set_whatever_the_order_in_the_message():
    tables = judged(snapshot(0, []), update(1, [{"status": "X", "id": "a", "price": 1}]))
    assert tables.session_changes[-1]["_set"] == ["price", "status"]


# -- session rows


def test_session_row_sums_up_its_messages():
    tables = judge(timeline("S5t50@1 U6t10@2 U6t99@3 U9t99@4"), rules())
    assert session(tables) == {
        "topic": TOPIC, "session_id": "s", "status": "broken", "epoch": 0, "next_seq": 7, "messages": 2,
        "duplicates": 1, "gaps": 1, "late": 0, "first_ts": START + 10, "last_ts": START + 50, "first_offset": 0,
        "last_offset": 3, "partition": 0, "ended_at": None,
    }  # fmt: skip


def test_malformed_messages_leave_no_trace_in_the_session_but_the_gap():
    bad = message(b"{", 1, at=5)
    first, last = timeline("S0 U2")
    tables = judge([first, bad, last._replace(offset=2)], rules())
    assert [row["reason"] for row in tables.quarantine] == ["not_json", "gap"]
    assert session(tables)["last_offset"] == 2
    assert list(judge([bad], rules()).sessions) == []


def test_quarantine_keeps_the_message_whole():
    bad = KafkaMessage(TOPIC, 3, 9, START, b"\xff", b"\x00\xff")
    tables = judge([bad, bad._replace(key=b"s", offset=10)], rules())
    assert tables.quarantine[0] == {
        "topic": TOPIC, "partition": 3, "offset": 9, "timestamp": START, "key": b"\xff", "value": b"\x00\xff",
        "reason": "bad_key", "session_id": None,
    }  # fmt: skip
    assert (tables.quarantine[1]["reason"], tables.quarantine[1]["session_id"]) == ("not_utf8", "s")


# -- lives


def test_message_exactly_at_the_timeout_continues_the_life():
    tables = judge(timeline(f"S5 U6@{TIMEOUT}"), rules(on_violation="fail"))
    assert (session(tables)["messages"], session(tables)["epoch"]) == (2, 0)


def test_message_after_the_timeout_starts_a_new_life():
    tables = judge(timeline(f"S5 U6 U6 S0@{TIMEOUT + 1} U1@{TIMEOUT + 1}"), rules(on_violation="fail"))
    row = session(tables)
    assert (row["messages"], row["duplicates"], row["epoch"], row["next_seq"], row["first_offset"]) == (2, 0, 3, 2, 3)
    assert list(rows(tables)) == ["r0", "r1"]


def test_new_life_is_judged_as_a_first_message_and_keeps_the_old_table_until_its_snapshot():
    tables = judge(timeline(f"S5 U6@{TIMEOUT + 1}"), rules())
    assert tables.quarantine[0]["reason"] == "orphan"
    assert (session(tables)["status"], session(tables)["epoch"], list(rows(tables))) == ("broken", -1, ["r5"])


def test_new_life_follows_an_ended_one():
    tables = judge(timeline(f"S0 E1 S0@{TIMEOUT + 1}"), rules(on_violation="fail"))
    assert (session(tables)["status"], session(tables)["ended_at"]) == ("open", None)


def test_only_well_formed_messages_keep_a_session_alive():
    first, last = timeline(f"S0 U1@{TIMEOUT + 1}")
    bad = message(b"{", 1, at=TIMEOUT)
    tables = judge([first, bad, last._replace(offset=2)], rules())
    assert [row["reason"] for row in tables.quarantine] == ["not_json", "orphan"]
    alive = judge(timeline(f"S0 S0@{TIMEOUT} U1@{TIMEOUT + 1}"), rules())
    assert session(alive)["messages"] == 2


@pytest.mark.parametrize(("after", "status"), [(TIMEOUT, "open"), (TIMEOUT + 1, "expired")])
def test_quiet_session_expires_when_the_stream_time_has_passed_its_timeout(after, status):
    other = message(b"not even a message", 1, at=after, key="other")
    tables = judge([*timeline("S0"), other], rules())
    assert session(tables)["status"] == status
    assert session(tables)["ended_at"] == (START + TIMEOUT if status == "expired" else None)


@pytest.mark.parametrize(("tokens", "status"), [("S0 U2", "expired"), ("S0 E1", "ended")])
def test_broken_sessions_expire_and_ended_ones_stay_ended(tokens, status):
    tables = judge([*timeline(tokens), message(b"", 9, at=TIMEOUT * 2, key="other")], rules())
    assert session(tables)["status"] == status


def test_stream_time_is_that_of_the_sessions_own_partition():
    other = KafkaMessage(TOPIC, 1, 0, START + TIMEOUT * 9, b"other", b"")
    assert session(judge([*timeline("S0"), other], rules()))["status"] == "open"


def test_same_session_id_in_two_topics_is_two_sessions():
    there = message(snapshot(0, [{"id": "x"}]), 0, topic="capture.b")
    tables = judge([*timeline("S0"), there], rules())
    assert {key: list(table) for key, table in tables.session_rows.items()} == {
        (TOPIC, 0, "s"): ["r0"], ("capture.b", 0, "s"): ["x"],
    }  # fmt: skip


def test_same_session_id_in_two_partitions_is_two_sessions_and_an_event_for_each():
    there = message(snapshot(0, [{"id": "x"}]), 0, partition=1)
    alone = message(snapshot(0, [{"id": "y"}]), 1, partition=1, key="alone")
    tables = judge([*timeline("S0 U1"), there, alone], rules())
    assert {key: list(table) for key, table in tables.session_rows.items()} == {
        (TOPIC, 0, "s"): ["r0", "r1"], (TOPIC, 1, "s"): ["x"], (TOPIC, 1, "alone"): ["y"],
    }  # fmt: skip
    names = ("partition", "session_id", "offset", "event", "action", "kafka_timestamp")
    assert [tuple(event[name] for name in names) for event in tables.integrity_events] == [
        (number, "s", None, "split_session", "recorded", None) for number in (0, 1)
    ]


# -- classes `once`, `window`, `none`


def test_once_fills_older_messages_in_below_newer_ones():
    tables = judged(
        snapshot(0, [{"id": "a", "price": 0.5, "qty": 0}]),
        update(3, [{"id": "a", "qty": 3}]),
        update(2, deleted=["b"]),
        update(1, [{"id": "a", "price": 1.5, "qty": 1}, {"id": "b"}]),
        by=rules("once"),
    )
    assert plain(tables) == {"a": {"price": 1.5, "qty": 3, "status": None}}
    assert rows(tables)["a"]["_seq"] == 3
    assert [change["_position"] for change in tables.session_changes] == [0, 0, 1, 2, 3, 3]


def test_once_older_snapshot_does_not_clear_newer_rows():
    tables = judge(timeline("U0 U2 S1 S4 S3"), rules("once"))
    assert list(rows(tables)) == ["r4"]
    assert session(tables)["epoch"] == 3
    assert list(rows(judge(timeline("U0 U2 S1"), rules("once")))) == ["r1", "r2"]


def test_window_applies_in_event_time_order_with_the_next_free_positions():
    tables = judge(timeline("S0t0 U2t5 U1t3 H3t20"), rules("window"))
    upserts = [change for change in tables.session_changes if change["change"] == "upsert"]
    assert [(c["row_id"], c["_offset"], c["_position"]) for c in upserts] == [("r0", 0, 3), ("r1", 2, 4), ("r2", 1, 5)]
    assert tables.counts[TOPIC, 0]["held"] == 1


def test_window_releases_what_it_held_when_the_session_expires():
    noticed_by_itself = judge(timeline(f"S0t0 E1t1 S9t2@{TIMEOUT + 1}"), rules("window"))
    by_another = judge([*timeline("S0t0 E1t1"), message(b"", 2, at=TIMEOUT + 1, key="other")], rules("window"))
    assert session(by_another)["status"] == "ended"
    assert by_another.session_changes == noticed_by_itself.session_changes
    assert {change["_position"] for change in by_another.session_changes} == {1}


def test_window_late_message_is_counted():
    assert session(judge(timeline("S0t20 U1t9"), rules("window")))["late"] == 1


def test_class_none_needs_no_seq():
    without = {"type": "update", "ts": START, "rows": [{"id": "a", "qty": 1}]}
    tables = judged(without, by=rules("none"))
    assert (session(tables)["next_seq"], rows(tables)["a"]["_seq"], session(tables)["messages"]) == (None, None, 1)
    assert judged(without, by=rules("order")).quarantine[0]["reason"] == "bad_seq"


# -- rules, digests, files


def test_first_pattern_that_matches_the_whole_topic_overrides():
    overriding = rules(
        by_topic=(("capture", {"integrity": "none"}), (r"capture\.a", {"integrity": "order"}), (".*", {}))
    )
    assert overriding.apply_topic_overrides(TOPIC).integrity == "order"
    assert overriding.apply_topic_overrides("capture.ab").integrity == "strict"
    assert session(judge(timeline("S0 U2"), overriding))["status"] == "open"


@pytest.mark.parametrize("wrong", [{"integrity": "exact"}, {"on_violation": "ignore"}, {"columns": {"a": "long"}}])
def test_unknown_rule_is_refused(wrong):
    with pytest.raises(ConfigError, match="expected one of"):
        CaptureRules(**wrong)


def test_a_finished_truth_takes_no_more():
    truth = GroundTruth(rules())
    truth.finish_and_return_tables()
    with pytest.raises(UsageError):
        truth.judge_message(timeline("S0")[0])
    with pytest.raises(UsageError):
        truth.finish_and_return_tables()


def test_keeping_no_changes_changes_nothing_else():
    messages = timeline("S0 U1 U3 S4")
    truth = GroundTruth(rules(), keep_changes=False)
    for one in messages:
        truth.judge_message(one)
    lean, full = truth.finish_and_return_tables(), judge(messages, rules())
    assert lean.session_changes == []
    assert (lean.session_rows, lean.sessions, lean.counts) == (full.session_rows, full.sessions, full.counts)


def test_digest_tells_tables_apart_and_ignores_the_order_of_rows():
    table = rows(judge(timeline("S0 U1"), rules()))
    backwards = {row_id: dict(reversed(table[row_id].items())) for row_id in reversed(table)}
    assert hash_session_table(table) == hash_session_table(backwards)
    changed = table | {"r1": table["r1"] | {"qty": 2}}
    assert hash_session_table(table) != hash_session_table(changed)
    assert hash_session_tables(judge(timeline("S0 U1"), rules())) == {(TOPIC, 0, "s"): hash_session_table(table)}


def test_written_truth_is_read_back_equal(tmp_path):
    messages = [*timeline("S0 U1 U1 U3 S4"), KafkaMessage(TOPIC, 0, 9, START, None, b"\xff")]
    tables = judge(messages, rules())
    write_expected_tables(tables, tmp_path / "truth")
    assert read_expected_tables(tmp_path / "truth") == tables


def test_unreadable_truth_is_named(tmp_path):
    with pytest.raises(LakeError, match="Simulate again"):
        read_expected_tables(tmp_path)
