"""The simulator's generator: the same seed gives the same stream, each fault does what its name says."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from sessionlake.errors import UsageError
from sessionlake.protocol.columns import parse_columns
from sessionlake.settings.model import CaptureSettings, KafkaSettings, Settings
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.malformed import ValidMessage, list_malformed_message_variants, list_unusual_valid_forms
from sessionlake_lab.simulate.run import build_scenario, send_scenario
from sessionlake_lab.simulate.scenario import PLAIN, FaultRates, MessageMix, Scenario
from sessionlake_lab.truth import CaptureRules, GroundTruth, KafkaMessage

DEFAULT = parse_columns({"price": "double", "qty": "bigint", "status": "string"})
EVERY_TYPE = parse_columns(
    {
        "b": "boolean",
        "t": "tinyint",
        "s": "smallint",
        "i": "int",
        "l": "bigint",
        "f": "float",
        "d": "double",
        "w": "string",
    }
)
SMALL = Scenario(rows=20, rate=500, duration_s=6, sessions_per_sensor=5)
# Everything that is said arrives, once and in order; nobody leaves.
CALM = replace(SMALL, ended=0, silent=0, late_sensors=0, joining=0)


def judged(messages, columns=DEFAULT, *, integrity="strict", on_violation="isolate", limits=None):
    """Feeds messages to the oracle, counting offsets as Kafka would."""
    truth = GroundTruth(
        CaptureRules(
            columns={c.name: c.sql for c in columns}, integrity=integrity, on_violation=on_violation, **(limits or {})
        )
    )
    offsets = Counter()
    for message in messages:
        where = message.topic, message.partition
        truth.judge_message(KafkaMessage(*where, offsets[where], message.timestamp, message.key, message.value))
        offsets[where] += 1
    return truth.finish_and_return_tables()


def by_session(messages):
    """Parsed values of every session, in order."""
    found = defaultdict(list)
    for message in messages:
        found[message.key].append(json.loads(message.value))
    return found


def share(tables, column):
    return sum(count[column] for count in tables.counts.values()) / sum(c["messages"] for c in tables.counts.values())


# --- determinism ---------------------------------------------------------------------------------------------


def test_same_scenario_gives_the_same_messages_in_the_same_order():
    scenario = replace(SMALL, faults=FaultRates.create_with_equal_rates(0.02))
    assert list(generate_messages(scenario, DEFAULT)) == list(generate_messages(scenario, DEFAULT))


def test_another_seed_gives_other_session_ids_and_other_values():
    one, other = (list(generate_messages(replace(SMALL, seed=seed), DEFAULT)) for seed in (1, 2))
    assert not {m.key for m in one} & {m.key for m in other}


def test_another_start_gives_other_session_ids_so_that_a_second_run_restarts_no_session():
    one, other = (
        list(generate_messages(replace(SMALL, start_ms=start), DEFAULT)) for start in (10**12, 10**12 + 60_000)
    )
    assert not {m.key for m in one} & {m.key for m in other}


def test_timestamps_never_fall_and_begin_at_the_start():
    times = [
        m.timestamp for m in generate_messages(replace(SMALL, faults=FaultRates.create_with_equal_rates(0.02)), DEFAULT)
    ]
    assert times == sorted(times)
    assert next(generate_messages(SMALL, DEFAULT)).timestamp == SMALL.start_ms
    assert times[-1] <= SMALL.start_ms + SMALL.duration_s * 1000


def test_a_session_stays_in_one_partition_and_sessions_spread_over_all():
    where = defaultdict(set)
    for message in generate_messages(replace(CALM, sessions_per_sensor=30, partitions=3), DEFAULT):
        where[message.topic, message.key].add(message.partition)
    assert {len(partitions) for partitions in where.values()} == {1}
    for topic in {topic for topic, _ in where}:
        used = Counter(next(iter(found)) for (name, _), found in where.items() if name == topic)
        assert min(used[partition] for partition in range(3)) >= 3


# --- a calm stream -------------------------------------------------------------------------------------------


def test_without_faults_the_strictest_judge_finds_nothing_wrong():
    messages = list(generate_messages(SMALL, DEFAULT))
    tables = judged(messages, on_violation="fail")
    assert not tables.quarantine
    assert not tables.integrity_events
    assert share(tables, "applied") == 1
    assert len(messages) == SMALL.message_slot_count


def test_every_declared_type_is_accepted():
    messages = generate_messages(
        replace(SMALL, mix=MessageMix(partial=0.5, nulls=0.2, undeclared=0.2, unusual=0.2)), EVERY_TYPE
    )
    tables = judged(messages, EVERY_TYPE, on_violation="fail")
    assert not tables.quarantine
    rows = [row for table in tables.session_rows.values() for row in table.values()]
    for column in EVERY_TYPE:
        assert any(row[column.name] is not None for row in rows)


def test_a_single_column_and_a_single_row_work():
    tables = judged(generate_messages(replace(SMALL, rows=1), DEFAULT[:1]), DEFAULT[:1], on_violation="fail")
    assert not tables.quarantine


def test_sessions_start_with_a_whole_snapshot_end_or_fall_silent():
    scenario = replace(SMALL, sessions_per_sensor=50, ended=0.3, silent=0.3, duration_s=20)
    sessions = by_session(generate_messages(scenario, DEFAULT))
    assert len(sessions) == scenario.session_count
    for said in sessions.values():
        assert said[0]["type"] == "snapshot"
        assert len(said[0]["rows"]) == scenario.rows
        assert "end" not in [message["type"] for message in said[:-1]]
    ended = sum(said[-1]["type"] == "end" for said in sessions.values())
    assert 0.15 * scenario.session_count < ended < 0.45 * scenario.session_count


def test_some_topics_appear_only_while_it_runs():
    first = {}
    for message in generate_messages(SMALL, DEFAULT):
        first.setdefault(message.topic, message.timestamp - SMALL.start_ms)
    assert len(first) == SMALL.sensors
    assert sum(at > 0.1 * 1000 * SMALL.duration_s for at in first.values()) == 1


def test_every_kind_of_healthy_message_is_there():
    mix = MessageMix(
        heartbeats=0.1, deletes=0.1, snapshots=0.02, partial=0.3, nulls=0.1, undeclared=0.1, rows_per_update=2
    )
    said = [
        message
        for session in by_session(generate_messages(replace(CALM, mix=mix), DEFAULT)).values()
        for message in session
    ]
    rows = [row for message in said for row in message.get("rows", [])]
    assert {message["type"] for message in said} == {"snapshot", "update", "heartbeat"}
    assert any(message.get("deleted") and "rows" in message for message in said)
    assert any(message.get("deleted") and "rows" not in message for message in said)
    assert any(row.keys() == {"id", "qty"} for row in rows)
    assert any(None in row.values() for row in rows)
    assert any(row.keys() - {"id", "price", "qty", "status"} for row in rows)
    assert any(len(message["rows"]) < CALM.rows for message in said if message["type"] == "snapshot")
    assert any(len(message.get("rows", [])) > 1 for message in said if message["type"] == "update")


def test_deleted_rows_come_back():
    changes = judged(generate_messages(replace(CALM, mix=replace(PLAIN, deletes=0.1, hot=3)), DEFAULT)).session_changes
    gone, back = set(), 0
    for change in changes:
        row = change["topic"], change["session_id"], change["row_id"]
        if change["change"] == "delete":
            gone.add(row)
        elif row in gone:
            back += 1
            gone.discard(row)
    assert back > 10


@pytest.mark.parametrize("number", range(len(list_unusual_valid_forms())))
def test_odd_forms_mean_the_same(number):
    plain = b'{"type":"update","seq":3,"ts":5,"rows":[{"id":"r0","price":1.50,"status":"OK"}],"deleted":["r1"]}'
    odd = list_unusual_valid_forms()[number](plain)
    assert odd != plain
    fields = ("type", "seq", "ts", "rows", "deleted")
    assert {name: json.loads(odd)[name] for name in fields} == {name: json.loads(plain)[name] for name in fields}


# --- the bench shape -----------------------------------------------------------------------------------------


def test_bench_gives_exactly_the_messages_asked_for_one_snapshot_each_and_strict_turns():
    messages = list(generate_messages(Scenario.create_benchmark(sessions=40, rows=5, messages=1000), DEFAULT))
    sessions = by_session(messages)
    assert len(messages) == 1000
    assert {len(said) for said in sessions.values()} == {25}
    for said in sessions.values():
        assert [message["seq"] for message in said] == list(range(25))
        assert [message["type"] for message in said] == ["snapshot"] + ["update"] * 24
        assert all(len(message["rows"]) == 1 for message in said[1:])
    updates = [len(m.value) for m in messages[40:]]
    assert 90 < sum(updates) / len(updates) < 140


def test_bench_by_plain_options_is_the_same_scenario(settings):
    built = build_scenario(settings, mode="bench", sensors=4, sessions=10, rows=5, messages=1000)
    assert list(generate_messages(built, DEFAULT)) == list(
        generate_messages(Scenario.create_benchmark(sessions=40, rows=5, messages=1000), DEFAULT)
    )


# --- plausible values ----------------------------------------------------------------------------------------


def series(scenario, column):
    """Per (session, row): its readings over time."""
    found = defaultdict(list)
    for message in generate_messages(scenario, DEFAULT):
        for row in json.loads(message.value).get("rows", []):
            found[message.key, row["id"]].append((message.timestamp, row[column]))
    return found


def longest_plateau(readings):
    best = run = 0
    for (_, one), (_, two) in pairwise(readings):
        run = run + 1 if one == two else 0
        best = max(best, run)
    return best


def test_a_row_follows_its_day_more_than_its_noise():
    scenario = replace(CALM, mix=replace(PLAIN, anomalies=0), rows=2, sensors=1, rate=1000, duration_s=20, day_s=10)
    readings = next(iter(series(scenario, "price").values()))
    value = np.array([price for _, price in readings])
    seconds = np.array([time - scenario.start_ms for time, _ in readings]) / 1000
    basis = np.c_[np.ones_like(seconds), np.sin(2 * np.pi * seconds / 10), np.cos(2 * np.pi * seconds / 10)]
    fitted = basis @ np.linalg.lstsq(basis, value, rcond=None)[0]
    assert np.var(value - fitted) < 0.1 * np.var(value)


def test_anomalies_make_stuck_spiking_and_drifting_rows():
    scenario = replace(CALM, sessions_per_sensor=20, sensors=1, rows=1, rate=4000, duration_s=20)
    calm = series(replace(scenario, mix=replace(PLAIN, anomalies=0)), "price")
    troubled = series(replace(scenario, mix=replace(PLAIN, anomalies=1)), "price")

    assert max(map(longest_plateau, calm.values())) < 10
    assert max(map(longest_plateau, troubled.values())) > 100
    highest_calm, highest = (max(price for r in found.values() for _, price in r) for found in (calm, troubled))
    assert highest > highest_calm + 10  # eight swings of one and a half degrees


def test_states_are_few_and_mostly_the_normal_one():
    states = Counter(
        row["status"]
        for said in by_session(generate_messages(replace(CALM, sensors=1, mix=PLAIN), DEFAULT)).values()
        for message in said
        for row in message["rows"]
    )
    assert states.keys() == {"OK", "DEFROST", "DOOR_OPEN", "ALARM"}
    assert states["OK"] > sum(states.values()) / 2


# --- faults --------------------------------------------------------------------------------------------------


def test_duplicates_are_the_same_bytes_again_and_nothing_else():
    messages = list(generate_messages(replace(CALM, faults=FaultRates(duplicates=0.05)), DEFAULT))
    tables = judged(messages)
    assert {event["event"] for event in tables.integrity_events} == {"duplicate"}
    assert 0.03 < share(tables, "duplicates") < 0.07
    assert len({(m.key, m.value) for m in messages}) == CALM.message_slot_count


def test_gaps_lose_messages():
    messages = list(generate_messages(replace(CALM, faults=FaultRates(gaps=0.05)), DEFAULT))
    events = Counter(event["event"] for event in judged(messages, on_violation="record").integrity_events)
    assert set(events) <= {"gap", "orphan"}
    assert 0.93 * CALM.message_slot_count < len(messages) < 0.97 * CALM.message_slot_count


def test_swaps_lose_nothing_and_only_change_the_order_within_a_session():
    calm = list(generate_messages(CALM, DEFAULT))
    swapped = list(generate_messages(replace(CALM, faults=FaultRates(swaps=0.05)), DEFAULT))
    assert len(calm) == len(swapped)
    out_of_turn = 0
    for said in by_session(swapped).values():
        seqs = [message["seq"] for message in said]
        assert sorted(seqs) == list(range(min(seqs), min(seqs) + len(seqs)))
        out_of_turn += sum(b < a for a, b in pairwise(seqs))
    assert 0.03 * len(calm) < out_of_turn < 0.07 * len(calm)


def test_reordered_event_times_fall_but_stay_within_two_seconds():
    back = 0
    for said in by_session(generate_messages(replace(CALM, faults=FaultRates(reordered=0.05)), DEFAULT)).values():
        times = np.array([message["ts"] for message in said])
        behind = np.maximum.accumulate(times) - times
        assert behind.max() < 2000
        back += (behind > 0).sum()
    assert back > 0.02 * CALM.message_slot_count


def test_late_messages_are_behind_the_lateness_and_judged_late():
    messages = generate_messages(replace(CALM, lateness_s=30, faults=FaultRates(late=0.05)), DEFAULT)
    tables = judged(messages, integrity="window", limits={"lateness_ms": 30_000})
    assert {row["reason"] for row in tables.quarantine} == {"late"}
    assert 0.03 < share(tables, "quarantined") < 0.07


def test_malformed_messages_take_no_seq_so_that_their_session_has_no_gap():
    tables = judged(generate_messages(replace(CALM, faults=FaultRates(malformed=0.05)), DEFAULT))
    assert not tables.integrity_events
    assert 0.03 < share(tables, "quarantined") < 0.07


def test_malformed_messages_have_every_reason():
    messages = generate_messages(replace(CALM, max_message_bytes=50_000, faults=FaultRates(malformed=0.1)), DEFAULT)
    reasons = {row["reason"] for row in judged(messages, limits={"max_message_bytes": 50_000}).quarantine}
    assert reasons == {reason for reason, _ in list_malformed_message_variants(DEFAULT, too_large=True)}
    assert len(reasons) == 14


def test_a_too_large_message_of_megabytes_comes_once():
    messages = generate_messages(replace(CALM, max_message_bytes=2_000_000, faults=FaultRates(malformed=0.2)), DEFAULT)
    assert sum(len(message.value) > 2_000_000 for message in messages) == 1


@pytest.mark.parametrize("columns", [DEFAULT, EVERY_TYPE], ids=["default", "every type"])
def test_each_malformed_variant_is_refused_for_the_reason_it_is_named_after(columns):
    victim = ValidMessage(
        b"s-1", 4, 10**12, b'{"id":"r0","%b":null}' % columns[0].name.encode(), 10**12, 20_000, 86_400_000
    )
    rules = CaptureRules(columns={c.name: c.sql for c in columns}, on_violation="isolate", max_message_bytes=20_000)
    for reason, make in list_malformed_message_variants(columns, too_large=True):
        truth = GroundTruth(rules)
        key, value = make(victim)
        truth.judge_message(KafkaMessage("capture.x", 0, 0, victim.timestamp, key, value))
        assert [row["reason"] for row in truth.finish_and_return_tables().quarantine] == [reason], value[:100]


def test_orphans_lose_the_first_snapshot_of_their_session():
    sessions = by_session(generate_messages(replace(CALM, faults=FaultRates(orphans=1)), DEFAULT))
    assert sessions
    assert all(said[0]["type"] != "snapshot" for said in sessions.values())


def test_after_end_speaks_once_more():
    scenario = replace(CALM, ended=1, faults=FaultRates(after_end=1))
    tables = judged(generate_messages(scenario, DEFAULT))
    assert {row["reason"] for row in tables.quarantine} == {"after_end"}
    assert {row["status"] for row in tables.sessions.values()} == {"ended"}


def test_all_faults_at_once_leave_most_messages_usable():
    tables = judged(
        generate_messages(replace(SMALL, faults=FaultRates.create_with_equal_rates(0.01)), DEFAULT), integrity="order"
    )
    assert share(tables, "applied") > 0.8
    assert len({event["event"] for event in tables.integrity_events}) > 2


# --- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [("sensors", 0), ("rate", 0), ("duration", -1), ("duplicates", 1.5), ("gaps", -0.1), ("rows", 0)],
)
def test_a_value_out_of_range_names_the_option_and_its_range(settings, option, value):
    with pytest.raises(UsageError, match=rf"{option}.*= {value:g}\. Give a value from"):
        build_scenario(settings, **{option: value})


def test_an_unknown_option_is_refused_with_the_known_ones(settings):
    with pytest.raises(UsageError, match=r"'dupes'\. Use one of .*duplicates"):
        build_scenario(settings, dupes=0.1)


def test_an_unknown_mode_is_refused(settings):
    with pytest.raises(UsageError, match="live, burst, bench"):
        build_scenario(settings, mode="fast")


def test_short_names_and_none_are_understood(settings):
    scenario = build_scenario(settings, sessions=3, duration=7, reorder=0.5, rows=None)
    assert (scenario.sessions_per_sensor, scenario.duration_s, scenario.faults.reordered) == (3, 7, 0.5)
    assert scenario.rows == Scenario().rows


def test_lateness_and_limits_come_from_the_settings(tmp_path):
    settings = Settings(home=tmp_path, capture=CaptureSettings(lateness="30 seconds", max_message_bytes=5000))
    scenario = build_scenario(settings, mode="bench", messages=100, sessions=5)
    assert (scenario.lateness_s, scenario.max_message_bytes) == (30, 5000)


def test_a_prefix_that_the_pipeline_would_not_read_is_refused(tmp_path):
    settings = Settings(home=tmp_path, kafka=KafkaSettings(topic_pattern=r"plant\..+"))
    with pytest.raises(UsageError, match=r"bronze would not read topic capture\.chamber-00"):
        send_scenario(settings, SMALL)
