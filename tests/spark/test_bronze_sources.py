"""Bronze from archives gives what was archived, once, whatever dies; and what Kinesis gives is numbered the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sessionlake.bronze import sources
from sessionlake.bronze.archive.writer import write_archive, write_archives
from sessionlake.bronze.streamed import _StreamSourceBatchWriter
from sessionlake.cli.archive import iterate_bronze_messages
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ERASURES
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import ConfigError, DataLossError, LakeError, OffsetHoleError
from sessionlake.ledger.entries import Ledger
from sessionlake.local.signals import StopFlag
from sessionlake.operations.forgetting.forget import SessionForgetter
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.protocol.erased import ERASED_KEY
from sessionlake.settings.kafka import KinesisSettings
from sessionlake.settings.model import BronzeSettings, CaptureSettings, Settings, load_settings
from sessionlake.settings.section import OnViolation
from sessionlake.streaming.journal import OperationJournal
from sessionlake.streaming.operation import FORGET
from support import crash_worker
from support.archives import capture
from support.lakes import find_table_folder, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "captures"
    made.mkdir()
    return made


@pytest.fixture
def archived(location: dict[str, Any], folder: Path) -> Settings:
    return Settings(**location, bronze=archive(folder), capture=CaptureSettings(on_violation=OnViolation.ISOLATE))


def archive(folder: Path) -> BronzeSettings:
    return BronzeSettings(source="archive", archive={"path": str(folder), "max_bytes_per_trigger": 1})


def run(spark, settings: Settings, layer: Layer = Layer.BRONZE) -> None:
    with StopFlag() as stop:
        assert run_once(spark, settings, layer, stop)


def places(spark, settings: Settings) -> list[tuple[Any, ...]]:
    rows = rows_of(spark, Lake(settings), "bronze.messages")
    return sorted((row["topic"], row["partition"], row["offset"], bytes(row["value"])) for row in rows)


def wanted(messages: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((topic, partition, message.offset, message.value) for (topic, partition), message in messages)


@pytest.mark.soak
def test_what_is_archived_comes_into_bronze_as_it_was_whatever_dies_between(spark, archived, folder, monkeypatch):
    write_archive(folder / "1.zip", capture(10))
    broken = bytearray((folder / "1.zip").read_bytes())
    broken[60] ^= 0xFF  # in the first member
    (folder / "1.zip").write_bytes(broken)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "write_entry", dies)
        with pytest.raises(Exception, match="killed"):
            run(spark, archived)
    write_archive(folder / "2.gz", [(at, m) for at, m in capture(20) if m.offset % 100 > 16])
    run(spark, archived)  # the batch that died, and the file that came since
    first = [(at, m) for at, m in capture(10) if at == ("capture.a", 1)]
    assert places(spark, archived) == wanted(first + [(at, m) for at, m in capture(20) if m.offset % 100 > 16])
    [damaged] = rows_of(spark, Lake(archived), "bronze.damaged_members")
    assert (damaged["member"], damaged["damage"]) == ("capture.a-0-000000.jsonl", "unreadable")
    entries = [row for row in rows_of(spark, Lake(archived), "ops.ledger") if row["layer"] == "bronze"]
    assert [(row["source"], row["messages"]) for row in sorted(entries, key=lambda row: row["batch_id"])] == [
        ("archive", 10),
        ("archive", 20),
    ]
    (folder / "1.zip").unlink()  # it was taken
    write_archive(folder / "3.zip", capture(5))
    with pytest.raises(OffsetHoleError, match="are already in"):  # what is archived twice
        run(spark, archived)
    with pytest.raises(LakeError, match=r"bronze\.source is kafka, but the messages in bronze came from archive"):
        sources.streamed.refuse_messages_of_other_source(spark, Lake(archived), "kafka")
    Lake(archived).drop_table(spark, "bronze.messages")
    with pytest.raises(
        DataLossError, match=r"bronze\.messages is gone, though bronze has processed messages\. Restore it"
    ):
        run(spark, archived)


@pytest.mark.soak
def test_a_file_that_is_given_twice_is_named_and_bronze_goes_on_once_it_is_to_be_passed_over(
    spark, archived, folder, monkeypatch
):
    later = [(at, m) for at, m in capture(20) if m.offset % 100 > 16]
    write_archive(folder / "1.zip", capture(10))
    write_archive(folder / "2.zip", capture(10))
    with (folder / "2.zip").open("r+b") as copy:  # its first member, which so is not the one that is named
        copy.seek(60)
        copy.write(b"\0")
    named = r"bronze: member capture\.a-1-\S+ of \S+/2\.zip has offsets 100 to 116 .* are already in.* \S+/2\.zip\.skip"
    with pytest.raises(OffsetHoleError, match=named):
        run(spark, archived)
    assert rows_of(spark, Lake(archived), "bronze.damaged_members") == []
    (folder / "2.zip").rename(folder / "2.zip.skip")
    write_archive(folder / "3.zip", later)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "write_entry", once_and_dies(Ledger.write_entry))
        with pytest.raises(Exception, match="killed"):
            run(spark, archived)
    (folder / "3.zip").rename(folder / "3.zip.skip")  # its messages are in the table
    run(spark, archived)
    assert places(spark, archived) == wanted(capture(20))
    entries = [row for row in rows_of(spark, Lake(archived), "ops.ledger") if row["layer"] == "bronze"]
    assert [row["messages"] for row in sorted(entries, key=lambda row: row["batch_id"])] == [20, 0, 20]


def once_and_dies(write: Callable[..., None]) -> Callable[..., None]:
    """Writes once, and dies then."""
    left = [write]

    def writes(*args: Any) -> None:
        (left.pop() if left else dies)(*args)

    return writes


def test_a_copy_in_the_same_batch_is_refused_whatever_holes_offsets_have(spark, location, folder):
    apart = [(at, replace(m, offset=10 * m.offset)) for at, m in capture(10)]
    settings = Settings(**location, bronze=BronzeSettings(source="archive", archive={"path": str(folder)}))
    turns = [[(at, m) for at, m in apart if m.offset % 20 == odd] for odd in (0, 10)]
    write_archive(folder / "1.zip", turns[0])
    write_archive(folder / "2.zip", turns[1])  # members that take turns are no copies
    write_archive(folder / "3.zip", turns[0][2:5])
    with pytest.raises(OffsetHoleError, match=r"member \S+ of \S+/3\.zip has offsets 40 to 160 .* are already in"):
        run(spark, settings)
    (folder / "3.zip").rename(folder / "3.zip.skip")
    run(spark, settings)
    assert places(spark, settings) == wanted(apart)


def dies(*_: object) -> None:
    raise RuntimeError("killed")


def test_bronze_archived_and_replayed_elsewhere_gives_the_same_silver(spark, archived, folder, tmp_path):
    write_archive(folder / "1.gz", capture())
    run(spark, archived)
    run(spark, archived, Layer.SILVER)
    write_archives(tmp_path / "again", iterate_bronze_messages(spark, archived), ".zip", 1)
    there = archived.model_copy(update={"home": tmp_path / "there", "bronze": archive(tmp_path / "again")})
    run(spark, there)
    run(spark, there, Layer.SILVER)
    for table in ("bronze.messages", "silver.session_changes", "silver.session_rows", "silver.sessions"):
        own = {"ingested_at", "_batch"}
        here, elsewhere = (rows_of(spark, Lake(settings), table) for settings in (archived, there))
        assert told(here, own) == told(elsewhere, own) != []


@pytest.mark.soak
def test_a_forgotten_session_s_messages_are_erased_as_archives_with_them_come(spark, archived, folder, tmp_path):
    write_archive(folder / "1.gz", capture(10))
    run(spark, archived)
    run(spark, archived, Layer.SILVER)
    found = SessionForgetter(spark, archived).forget_session("s0")
    assert found.report["search"]["found"] == []
    assert found.report["left"][0].startswith(f"the archives in {folder} that have the session's messages")
    write_archive(folder / "2.gz", [(at, m) for at, m in capture(20) if m.offset % 100 > 16])
    run(spark, archived)
    rows = rows_of(spark, Lake(archived), "bronze.messages")
    assert Counter((bytes(row["key"]), row["value"] is None) for row in rows) == {
        (ERASED_KEY, True): 20,
        (b"s1", False): 20,
    }
    log = find_table_folder(Lake(archived), ERASURES) / "_delta_log"
    newest = max(log.glob("*.json"))
    kept = newest.rename(tmp_path / newest.name)
    newest.with_suffix(".crc").unlink(missing_ok=True)
    with pytest.raises(
        DataLossError, match=rf"{ERASURES} has lost its latest changes: it ends with version \d+, and ops.ledger has"
    ):
        run(spark, archived)
    kept.rename(newest)
    run(spark, archived)
    OperationJournal.create_journal(archived, FORGET, {"session": "s"})
    with pytest.raises(LakeError, match="the forgetting of a session was interrupted"):
        run(spark, archived)


def told(rows: list[Any], without: set[str]) -> list[str]:
    return sorted(str({name: value for name, value in dict(row).items() if name not in without}) for row in rows)


def test_kinesis_is_read_on_databricks_alone(location):
    settings = Settings(**location, bronze=BronzeSettings(source="kinesis", kinesis={"streams": "a", "region": "r"}))
    with pytest.raises(ConfigError, match=r"Only Databricks' runtime .* Run bronze on Databricks"):
        sources.require_readable_source(settings)


def test_what_kinesis_gives_is_numbered_by_shard_in_the_order_of_sequence_numbers(spark, location):
    lake = Lake(Settings(**location))
    lake.create_or_update_tables(spark, ["bronze.messages", "bronze.damaged_members", "ops.ledger", "ops.topics"])
    batch = _StreamSourceBatchWriter(
        lake, lake.settings, sources.KinesisSource(KinesisSettings(streams="a", region="r")), None
    )
    at = datetime(2026, 1, 1, tzinfo=UTC)
    ddl = (
        "partitionKey string, data binary, stream string, shardId string, sequenceNumber string, "
        "approximateArrivalTimestamp timestamp"
    )

    def sent(*numbers: tuple[int, str]) -> DataFrame:
        rows = [("s", number.encode(), "a", f"shardId-{shard:012d}", number, at) for shard, number in numbers]
        return spark.createDataFrame(rows, ddl)

    batch(sent((0, "10"), (0, "9"), (1, "7")), Txn("kinesis", 0))
    batch(sent((0, "11"), (0, "100")), Txn("kinesis", 1))
    batch(sent((0, "11"), (0, "100")), Txn("kinesis", 1))  # once more
    assert [(part, offset, value.decode()) for _, part, offset, value in places(spark, lake.settings)] == [
        (0, 0, "9"),
        (0, 1, "10"),
        (0, 2, "11"),
        (0, 3, "100"),
        (1, 0, "7"),
    ]


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["after:bronze.messages", "before:ops.ledger", "after:ops.ledger"])
def test_a_process_that_is_killed_leaves_each_archived_message_once(fault, folder, tmp_path, spark):
    write_archive(folder / "1.gz", capture(10))
    file = tmp_path / "sessionlake.yml"
    file.write_text(
        f"home: {tmp_path / 'home'}\nbronze: {{source: archive, archive: {{path: {folder}}}}}\n", encoding="utf-8"
    )
    worker = [sys.executable, str(Path(crash_worker.__file__)), str(file), "bronze"]
    died = subprocess.run(worker, env=os.environ | {"SESSIONLAKE_FAULT": fault}, check=False)
    assert died.returncode == -signal.SIGKILL
    subprocess.run(worker, check=True)
    own = load_settings(file)
    assert places(spark, own) == wanted(capture(10))
    assert [row["messages"] for row in rows_of(spark, Lake(own), "ops.ledger")] == [20]
