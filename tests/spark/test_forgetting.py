"""A session is forgotten, and the rest of the lake is as it was."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from operator import eq
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.cli.forget import _lock_all_layers_to_forget
from sessionlake.cli.gold import verify_gold_tables as verify_gold
from sessionlake.cli.maintain import maintain_once, maintain_until_stopped
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    AVERAGES,
    CHANGES,
    CUTS,
    EVENTS,
    GOLD,
    LEDGER,
    LOOKUP_FAILURES,
    MESSAGES,
    PROCESSOR_ERRORS,
    PROGRESS,
    QUARANTINE,
    ROWS,
    SESSIONS,
    SNAPSHOTS,
)
from sessionlake.delta.schemas.properties import DELETION_VECTORS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.errors import ClaimedByOtherProcessError, LakeError, UsageError
from sessionlake.gold import job as gold
from sessionlake.gold.declared.tables import build_declared_gold_schemas
from sessionlake.history.content import decode_first_message_part
from sessionlake.ledger.entries import Ledger, LedgerEntry
from sessionlake.ledger.erasures import (
    ErasureReceipt,
    hash_forgotten_session,
    read_erasure_receipts,
    store_erasure_receipt,
)
from sessionlake.operations.forgetting import rows
from sessionlake.operations.forgetting.forget import SessionForgetter
from sessionlake.operations.forgetting.forget import _ForgetJournalInputs as Forgotten
from sessionlake.operations.forgetting.receipt import _find_columns_containing, list_copies_outside_lake
from sessionlake.operations.forgetting.search import search_folder_for_text
from sessionlake.operations.rebuild.processors import list_staging_tables_of_processor
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.processors import job as processors
from sessionlake.protocol.erased import ERASED_KEY
from sessionlake.settings.model import CaptureSettings, GoldSettings, ProcessorSettings, Settings, SilverSettings
from sessionlake.silver import job
from sessionlake.streaming.journal import OperationJournal
from sessionlake.streaming.losses import count_removed_rows_by_table, refuse_lost_rows
from sessionlake.streaming.operation import FORGET
from sessionlake.streaming.pause_requests import request_pause
from sessionlake.streaming.payload_files import PayloadFiles, read_payload
from sessionlake_lab.truth import KafkaMessage
from support.lakes import rows_of, write_bronze, write_rows
from support.layers import run_layers

TOPIC = "capture.a"
GONE = "alpha-0007"
OTHERS = ("beta-0007", "alpha-00071")
START = 1_700_000_000_000
SILVER = (CHANGES, PROGRESS, QUARANTINE, EVENTS, CUTS, ROWS, SESSIONS, SNAPSHOTS)


@pytest.fixture
def settings(location: dict[str, Any]) -> Settings:
    capture = CaptureSettings(columns={"price": "double"}, integrity="strict", on_violation="record")
    own = ProcessorSettings(name="top", target="sessionlake.examples.top_of_book:TopOfBook")
    each = {"name": "each", "keys": ["topic", "session_id"], "bucket": "1 minute", "lateness": "30 s"}
    appended = each | {"aggregates": {"n": "count"}, "output": "append"}
    gold = GoldSettings.model_validate({"products": [appended]})
    return Settings(**location, capture=capture, silver=SilverSettings(shards=3), processors=(own,), gold=gold)


def stream(batches: int) -> Iterator[list[KafkaMessage]]:
    """Three sessions in one partition, with a duplicate and a broken message each in the first batch."""
    offset = 0
    for number in range(batches):
        batch = []
        for step in range(8):
            seq = number * 8 + step
            for name in (GONE, *OTHERS):
                row = {"id": f"r{step % 3}", "price": float(seq)}
                body = {"type": "update" if seq else "snapshot", "seq": seq, "ts": START + seq * 60_000, "rows": [row]}
                value = json.dumps(body).encode()
                for text in [value, value, b"{"] if seq == 5 else [value]:
                    batch.append(KafkaMessage(TOPIC, 0, offset, START + offset * 20_000, name.encode(), text))
                    offset += 1
        yield batch


def run(spark: Any, settings: Settings, *batches: list[KafkaMessage]) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [MESSAGES])
    for batch in batches:
        write_bronze(spark, lake, batch)
    run_layers(spark, settings)
    processors.start(spark, settings, "top", once=True).wait()


def of_others(spark: Any, lake: Lake) -> dict[str, Counter[str]]:
    return {
        table: Counter(repr(row) for row in rows_of(spark, lake, table) if row["session_id"] != GONE)
        for table in SILVER
    }


def test_nothing_is_left_of_the_session_and_all_else_goes_on_as_it_was(spark: Any, settings: Settings) -> None:
    lake, (first, second, third) = Lake(settings), stream(3)
    run(spark, settings, first, second)
    before = of_others(spark, lake)
    final = {row["session_id"] for row in rows_of(spark, lake, "gold.each_final")}
    assert final == {GONE, *OTHERS}

    with pytest.raises(UsageError, match="has no message of session 'nobody'"):
        SessionForgetter(spark, settings).forget_session("nobody")
    said: list[str] = []
    found = SessionForgetter(spark, settings, say=said.append).forget_session(GONE)

    mine = sum(m.key == GONE.encode() for m in (*first, *second))
    assert found.messages == mine
    assert found.session_hash == hash_forgotten_session(found.salt, TOPIC, GONE)
    assert found.report["tables"][CHANGES]["rows"] > 0
    assert found.report["search"]["found"] == []
    assert [one.receipt for one in read_erasure_receipts(lake.reader(spark))] == [found.receipt]
    assert of_others(spark, lake) == before
    left = rows_of(spark, lake, MESSAGES)
    assert [row["offset"] for row in sorted(left, key=lambda row: row["offset"])] == list(range(len(first + second)))
    assert sum((row["key"], row["value"]) == (ERASED_KEY, None) for row in left) == mine

    refuse_lost_rows(spark, lake, (CHANGES, QUARANTINE, EVENTS))
    run(spark, settings, [m._replace(key=ERASED_KEY, value=None) if m.key == GONE.encode() else m for m in third])
    for table in (SESSIONS, "gold.each_final"):
        assert {row["session_id"] for row in rows_of(spark, lake, table)} == set(OTHERS)
    made = Counter(row["session_id"] for row in rows_of(spark, lake, "silver.top"))
    assert made == dict.fromkeys(OTHERS, 24)  # each message once, with what comes of the state that was handed over
    verified = verify_silver_tables(spark, settings)
    assert verified.is_exact, (verified.first_difference, verified.states)
    assert verify_gold(spark, settings, said.append), said[-3:]
    erased = next(row for row in rows_of(spark, lake, MESSAGES, ("offset", eq, 0)))
    assert decode_first_message_part(erased, settings).erased
    if not lake.storage.needs_spark:
        assert search_folder_for_text(settings.home, GONE).found == ()
    with pytest.raises(UsageError, match="or is forgotten already"):
        SessionForgetter(spark, settings).forget_session(GONE)


def begun() -> ErasureReceipt:
    """A receipt, before anything is done."""
    return ErasureReceipt("1", TOPIC, "", "", datetime.now(UTC), report={"tables": {}})


def published(settings: Settings, place: dict[str, Any]) -> None:
    """Leaves the checkpoint of a publication that has come to a place of the table."""
    checkpoint = Path(settings.checkpoint_path(f"publish-{ROWS}-out"))
    for name, text in (("offsets", f"v1\n{{}}\n{json.dumps(place)}"), ("commits", "v1\n{}")):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
        (checkpoint / name / "0").write_text(text)


def files_with(spark: Any, lake: Lake, table: str, session: str) -> list[str]:
    """The files of a table, beside its log, in which a session is."""
    [detail] = lake.open_delta_table(spark, table).detail().select("location").collect()
    found = search_folder_for_text(Path(detail["location"].removeprefix("file:")), session, ("_delta_log",)).found
    return [one.place for one in found]


@pytest.mark.soak
def test_rows_that_are_only_marked_as_gone_leave_their_files_though_the_session_has_no_others(
    spark: Any, settings: Settings
) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [ROWS])
    lake.set_property(spark, ROWS, DELETION_VECTORS, "true")
    write_rows(spark, lake, ROWS, [{"topic": TOPIC, "session_id": s, "row_id": "r"} for s in (GONE, OTHERS[0])])
    lake.open_delta_table(spark, ROWS).delete(f"session_id = '{GONE}'")
    assert files_with(spark, lake, ROWS, GONE)

    journal = OperationJournal(settings, FORGET, Forgotten("1", TOPIC, GONE))
    steps = dict(SessionForgetter(spark, settings)._list_steps((TOPIC, GONE), begun(), journal))
    done = journal.done[ROWS] = steps[ROWS]()
    assert steps[ROWS]() == done  # the version that publications are to come to
    place = {"reservoirId": "a", "reservoirVersion": done["version"], "index": -1, "isStartingVersion": False}
    published(settings, place)
    with pytest.raises(
        LakeError,
        match=r"publish-silver\.session_rows-out has not sent to Kafka yet that the session's rows are removed",
    ):
        steps["publications"]()
    published(settings, place | {"reservoirVersion": done["version"] + 1})
    steps["publications"]()
    lake.storage.purge_history(spark, ROWS, "test")
    assert files_with(spark, lake, ROWS, GONE) == []
    assert [row["session_id"] for row in rows_of(spark, lake, ROWS)] == [OTHERS[0]]


def test_messages_are_in_no_file_though_the_platform_marks_what_changes(spark: Any, settings: Settings) -> None:
    lake, ((*messages, _),) = Lake(settings), stream(1)
    lake.create_or_update_tables(spark, [MESSAGES])
    if lake.storage.needs_spark:
        lake.set_property(spark, MESSAGES, DELETION_VECTORS, "true")  # as workspaces can have it for all new tables
    write_bronze(spark, lake, messages)
    rows.erase_session_messages_in_bronze(spark, lake, (TOPIC, GONE))
    lake.storage.purge_history(spark, MESSAGES, "test")
    assert files_with(spark, lake, MESSAGES, GONE) == []
    assert files_with(spark, lake, MESSAGES, OTHERS[0])


def test_gold_that_died_as_its_checkpoint_was_put_aside_is_emptied_all_the_same(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, checkpoint, died = Lake(settings), Path(settings.checkpoint_path(GOLD)), begun()
    lake.create_or_update_tables(spark, [AVERAGES, LOOKUP_FAILURES, LEDGER])
    write_rows(spark, lake, AVERAGES, [{"topic": TOPIC, "session_id": GONE, "row_id": "r", "metric": "price"}])
    write_rows(spark, lake, LOOKUP_FAILURES, [{"reference": "owners", "key": json.dumps([GONE])}])
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"1"}')

    def dying(name: str) -> None:
        if name == "after:gold.aside":
            raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr("sessionlake.operations.rebuild.endings.inject_fault_if_requested", dying)
        with pytest.raises(DiedError):
            SessionForgetter(spark, settings)._empty_gold_tables(died)
    assert not checkpoint.exists()
    SessionForgetter(spark, settings)._empty_gold_tables(died)
    assert rows_of(spark, lake, AVERAGES) == rows_of(spark, lake, LOOKUP_FAILURES) == []


def test_what_a_rebuild_of_a_processor_or_a_batch_of_gold_has_left_beside_the_tables_goes(
    spark: Any, settings: Settings
) -> None:
    made, rows = list_staging_tables_of_processor("top"), pa.table({"session_id": [GONE] * 100_000})
    beside = Lake(settings, dict.fromkeys(made, TABLES[PROCESSOR_ERRORS])).build_staging_lake()
    beside.create_or_update_tables(spark, made)
    assert read_payload(PayloadFiles.create_for_query(Lake(settings).storage.scratch, GOLD).write_rows(rows)) == rows
    SessionForgetter(spark, settings)._remove_archived_checkpoints()
    assert [table for table in made if beside.exists(spark, table)] == []
    assert not (settings.home / "scratch").exists()


def test_the_receipt_names_gold_s_tables_that_the_configuration_leaves_out(spark: Any, settings: Settings) -> None:
    lake = Lake(settings, build_declared_gold_schemas(settings))
    lake.create_or_update_tables(spark, [AVERAGES, "gold.each", "gold.each_final"])
    spark.sql(
        f"CREATE OR REPLACE VIEW {lake.storage.create_view_schema_and_get_name(spark, 'gold.seen')} AS SELECT 1 AS one"
    )
    without = Lake(settings.model_copy(update={"gold": GoldSettings()}))
    told = {one.partition(":")[0] for one in list_copies_outside_lake(spark, without, TOPIC)} - {
        *list_copies_outside_lake(spark, lake, TOPIC)
    }
    assert {table for table in told if table.startswith("gold.")} == {"gold.each", "gold.each_final"}


def test_the_books_lose_the_session_s_decisions_and_nothing_else(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [LEDGER])
    own = {"topic": TOPIC, "partition": 0, "session_id": GONE, "offset": 1, "decision": "skip"}
    other = own | {"session_id": OTHERS[1]}
    for batch, taken in enumerate(((), (own, other), (other,))):
        entry = LedgerEntry("silver", Txn("q", batch), MESSAGES, datetime.now(UTC), messages=batch, decisions=taken)
        Ledger(lake).write_entry(spark, entry)
    before = {row["batch_id"]: row for row in rows_of(spark, lake, LEDGER)}
    assert _find_columns_containing(spark, lake, LEDGER, GONE) == ["decisions"]

    rows.remove_session_from_operations_tables(spark, lake, (TOPIC, GONE))

    assert _find_columns_containing(spark, lake, LEDGER, GONE) == []
    assert _find_columns_containing(spark, lake, LEDGER, OTHERS[1]) == ["decisions"]
    assert {row["batch_id"]: row for row in rows_of(spark, lake, LEDGER)} == before | {
        1: before[1] | {"decisions": [other]}
    }


def test_of_what_was_rebuilt_since_no_rows_are_gone(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [LEDGER])
    now = datetime.now(UTC)
    store_erasure_receipt(spark, lake, replace(begun(), begun_at=now, report={"tables": {CHANGES: {"rows": 3}}}))
    assert count_removed_rows_by_table(lake.reader(spark)) == {CHANGES: 3}
    Ledger(lake).write_entry(spark, LedgerEntry("silver", Txn(f"{REBUILD}1", 4), MESSAGES, now))
    assert count_removed_rows_by_table(lake.reader(spark)) == {}


def test_files_are_not_merged_while_a_session_is_forgotten(spark: Any, settings: Settings) -> None:
    lake, stop, said = Lake(settings), threading.Event(), []
    lake.create_or_update_tables(spark, [MESSAGES])

    def say(text: str) -> None:
        said.append(text)
        if text == "resuming":
            stop.set()

    with request_pause(settings, "a session is being forgotten"):
        merging = threading.Thread(target=maintain_until_stopped, args=(spark, settings, None, stop, say))
        merging.start()
        with (
            _lock_all_layers_to_forget(spark, settings, 60),
            pytest.raises(ClaimedByOtherProcessError, match="forgets a session"),
        ):
            maintain_once(spark, settings, None, OutputFormat.JSON)
    merging.join(60)
    assert said[1:] == ["pausing: a session is being forgotten", "resuming", "stopped"]


class DiedError(BaseException):
    """Stands for a process that is killed."""


@pytest.mark.soak
def test_a_forgetting_that_dies_anywhere_holds_the_layers_up_and_is_gone_on_with(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, (first, second) = Lake(settings), stream(2)
    run(spark, settings, first)
    before, died = of_others(spark, lake), []

    def dying(name: str) -> None:
        if name not in died:
            died.append(name)
            raise DiedError

    with monkeypatch.context() as patch:
        own = ("streaming.journal", "operations.rebuild.endings")
        for name in ("delta.commit", "streaming.handover", *own):
            patch.setattr(f"sessionlake.{name}.inject_fault_if_requested", dying)
        while "after:forget:bronze" not in died:
            with pytest.raises(DiedError):
                SessionForgetter(spark, settings).forget_session(GONE)
        for start in (job.start, gold.start):
            with pytest.raises(LakeError, match="Run `sessionlake forget --resume`"):
                start(spark, settings, once=True)
        with pytest.raises(UsageError, match="another session is not forgotten completely yet"):
            SessionForgetter(spark, settings).forget_session(OTHERS[0])
        found = None
        while found is None:
            with suppress(DiedError):
                found = SessionForgetter(spark, settings).forget_session(GONE)
    assert {"before:bronze.erasures", "after:gold.aside", "after:silver.swapped", "after:forget:aside"} <= {*died}
    assert found.messages == sum(m.key == GONE.encode() for m in first)
    assert found.report["search"]["found"] == []
    assert not FORGET.find_journal_file(settings).exists()
    assert of_others(spark, lake) == before
    run(spark, settings, [m._replace(key=ERASED_KEY, value=None) if m.key == GONE.encode() else m for m in second])
    verified = verify_silver_tables(spark, settings)
    assert verified.is_exact, (verified.first_difference, verified.states)
    assert verify_gold(spark, settings, lambda _: None)
