"""What may go, by rule: nothing that a reader needs, whatever the positions and ages; and which rows that are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER
from sessionlake.delta.storage.expired import ExpiredRowSelection
from sessionlake.ledger.progress import read_last_commits_since
from sessionlake.ledger.retained import LIMITS
from sessionlake.operations.retention import removal, rules
from sessionlake.operations.retention.removal import RetentionRunner
from sessionlake.settings.model import RetentionSettings, Settings
from support import ledgers
from support.lakes import find_table_folder

TOPICS, SESSIONS = ("a", "b"), ("r", "s", "t")
PLACES = [("a", 0), ("a", 1), ("b", 0)]
SESSION = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("session_id", pa.string()),
        ("first_offset", pa.int64()),
        ("last_kafka_timestamp", pa.int64()),
    ]
)
offsets = st.integers(-1, 30)
ends = st.dictionaries(st.sampled_from(PLACES), st.integers(0, 30))
sessions = st.lists(
    st.tuples(st.sampled_from(PLACES), st.sampled_from(SESSIONS), st.none() | st.integers(0, 30), st.integers(0, 60)),
    unique_by=lambda row: (row[0][0], row[1]),
)
names = st.tuples(st.sampled_from(TOPICS), st.sampled_from(SESSIONS))


def table_of(found: list[Any]) -> pa.Table:
    rows = [
        {"topic": t, "partition": p, "session_id": s, "first_offset": first, "last_kafka_timestamp": last}
        for (t, p), s, first, last in found
    ]
    return pa.Table.from_pylist(rows, SESSION)


@given(ends, st.lists(ends, max_size=3), sessions)
def test_of_bronze_goes_what_is_old_all_have_read_and_no_session_needs_and_all_of_that(aged, read, held):
    limits = rules.compute_removal_limits_of_messages(aged, read, table_of(held))
    for place, old in aged.items():
        needed = [old + 1, *(reader.get(place, -1) + 1 for reader in read)]
        needed += [first or 0 for of, _, first, _ in held if of == place]
        assert limits.get(place, -1) + 1 == min(needed)
    assert limits.keys() <= aged.keys()


@given(ends, ends)
def test_limits_are_never_moved_back(before, now):
    both = rules.merge_removal_limits(
        rules.build_table_of_partition_removal_limits(before),
        rules.build_table_of_partition_removal_limits(now),
        ("topic", "partition"),
    )
    told = {(row["topic"], row["partition"]): row["limit"] for row in both.to_pylist()}
    assert told == {place: max(known[place] for known in (before, now) if place in known) for place in before | now}


@given(
    st.lists(
        st.tuples(
            st.none() | st.sampled_from(TOPICS),
            st.none() | st.sampled_from(SESSIONS),
            st.none() | st.integers(0, 9),
            st.integers(0, 9),
            st.none() | st.booleans(),
        )
    ),
    st.dictionaries(names, st.integers(0, 9)),
    st.integers(-1, 9),
    st.booleans(),
)
def test_a_row_goes_if_it_is_of_a_limit_and_up_to_it_and_old_and_not_spared(found, limits, batch, spared):
    schema = [("topic", pa.string()), ("session_id", pa.string()), ("at", pa.int64()), ("_batch", pa.int64())]
    columns = [*zip(*found, strict=True)] or [()] * 5
    rows = pa.table(dict(zip([*(n for n, _ in schema), "late"], columns, strict=True)))
    rows = rows.cast(pa.schema([*schema, ("late", pa.bool_())]))
    known = [{"topic": t, "session_id": s, "limit": limit} for (t, s), limit in limits.items()]
    table = pa.Table.from_pylist(known, LIMITS)
    expired = ExpiredRowSelection(("topic", "session_id"), "at", table, {"_batch": batch}, "late" if spared else None)
    goes = [
        at is not None and at <= limits.get((topic, session), -1) and own <= batch and not (spared and late)
        for topic, session, at, own, late in found
    ]
    batches = rows.combine_chunks().to_batches()
    assert [flag for part in batches for flag in expired.mask_selected_rows(part).to_pylist()] == goes


def test_nothing_goes_by_default_and_the_ledger_stays_as_long_as_what_it_tells_the_age_of():
    assert set(RetentionSettings().model_dump().values()) == {None}
    assert RetentionSettings(bronze="2 days", ledger="2 days").ledger == timedelta(days=2)
    with pytest.raises(ValidationError, match="ledger is shorter than events"):
        RetentionSettings(events="2 days", ledger="1 day")
    with pytest.raises(ValidationError, match="greater than or equal"):
        RetentionSettings(bronze="59 minutes")


def test_a_partition_that_comes_in_while_the_ledger_is_read_is_not_old(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, reading = Lake(settings), removal.read_last_offsets
    write_deltalake(find_table_folder(lake, LEDGER), ledgers.entries(0, 40))
    monkeypatch.setattr(
        removal,
        "read_last_offsets",
        lambda reader, layer: {p: at for p, at in reading(reader, layer).items() if p[1] < ledgers.PLACES - 1},
    )
    aged = RetentionRunner(None, settings)._find_last_offsets_read_before("bronze", ledgers.NOON + 20 * ledgers.SPACING)
    assert aged == {("capture.a", number): 49 for number in range(ledgers.PLACES - 1)}


def test_when_the_last_batch_came_that_had_messages_of_a_topic_partition_is_reported_by_the_ledger(
    settings: Settings,
) -> None:
    lake, rows = Lake(settings), ledgers.entries(0, 40)
    write_deltalake(find_table_folder(lake, LEDGER), rows)
    since, expected = ledgers.NOON + 20 * ledgers.SPACING, {}
    for row in rows.to_pylist():
        if row["layer"] == "bronze" and row["committed_at"] >= since:
            for item in (item for item in row["offsets"] if item["messages"]):
                place = item["topic"], item["partition"]
                expected[place] = max(row["committed_at"], expected.get(place, since))
    assert expected
    assert read_last_commits_since(lake.reader(), "bronze", since) == expected
