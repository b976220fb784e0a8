"""Tables as plain files: they hold what the table does, none is too large, and a folder holds all or nothing."""

from __future__ import annotations

import base64
import csv
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

from sessionlake.cli.app import app
from sessionlake.cli.export import (
    create_time_travel_option,
    parse_number_of_bytes,
    require_exportable_table,
    select_exported_rows,
)
from sessionlake.delta import export as module
from sessionlake.delta.export import FileFormat, export_frame
from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError, UsageError
from sessionlake.settings.model import Settings

TABLE = "bronze.messages"
TEXTS = ("capture.a", ' say "none",\n ', "", None)
NONE = "none\n"
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
WIDE = 1 << 40
MARKS = {"_SUCCESS", "_sessionlake_export"}


@pytest.fixture(scope="module")
def settings(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Messages 0 to 999 of two topics in version 1, one more in version 2: with headers, nulls, bytes and quotes."""
    made = Lake(Settings(home=tmp_path_factory.mktemp("export") / "home"))
    made.create_or_update_tables(spark, [TABLE])
    schema = made.read(spark, TABLE).schema

    def append(offsets: range) -> None:
        rows = [
            (TEXTS[n % 4], 0, n, AT, 0, b"k\xff" if n else None, NONE.encode() * (n % 7), [("a", b"\x00")], AT)
            for n in offsets
        ]
        made.storage.append_rows_with_spark(spark.createDataFrame(rows, schema), TABLE, {})

    append(range(1000))
    append(range(1000, 1001))
    return made.settings


def files(folder: Path) -> list[Path]:
    assert (folder / "_SUCCESS").exists()
    assert {path.name for path in folder.iterdir() if not path.name.startswith(("part-", "."))} == MARKS
    assert [path for path in folder.parent.iterdir() if path.name.startswith(f"{folder.name}.")] == []
    return sorted(folder.glob("part-*"))


def test_csv_and_json_lines_hold_what_parquet_does(spark, settings, tmp_path):
    found = {}
    for form in FileFormat:
        rows = select_exported_rows(spark, settings, TABLE, "offset < 9", {})
        told = export_frame(rows, str(tmp_path / form), form, WIDE, overwrite=False)
        found[form] = files(tmp_path / form)
        assert (told.rows, told.files, told.bytes) == (9, 1, found[form][0].stat().st_size)
    parquet = ds.dataset(found[FileFormat.PARQUET]).to_table().sort_by("offset").to_pylist()
    with found[FileFormat.CSV][0].open(newline="", encoding="utf-8") as text:
        cells = sorted(csv.DictReader(text), key=lambda row: int(row["offset"]))
    lines = [json.loads(line) for line in found[FileFormat.JSONL][0].read_text(encoding="utf-8").splitlines()]
    lines.sort(key=lambda row: row["offset"])
    for whole, cell, line in zip(parquet, cells, lines, strict=True):
        assert line | {"value": base64.b64decode(line["value"])} == whole | {
            "key": whole["key"] and base64.b64encode(whole["key"]).decode(),
            "headers": [{"key": "a", "value": "AA=="}],
            "timestamp": "2026-01-02T03:04:05.678901Z",
            "ingested_at": "2026-01-02T03:04:05.678901Z",
        }
        assert json.loads(cell["headers"]) == line["headers"]
        for name in ("topic", "key", "value", "timestamp"):
            assert cell[name] == (line[name] or "")


@pytest.mark.parametrize("form", FileFormat)
def test_no_file_is_larger_than_it_may_be_though_rows_are_of_many_sizes(spark, settings, tmp_path, monkeypatch, form):
    monkeypatch.setattr(module, "_SAMPLE", 20)
    bound = 20_000
    told = export_frame(
        select_exported_rows(spark, settings, TABLE, None, {}), str(tmp_path / "out"), form, bound, overwrite=False
    )
    sizes = [path.stat().st_size for path in files(tmp_path / "out")]
    assert (told.rows, told.files, told.bytes) == (1001, len(sizes), sum(sizes))
    assert max(sizes) <= bound
    assert len(sizes) <= 6 * (sum(sizes) // bound + 1)
    if form is FileFormat.PARQUET:
        assert sorted(ds.dataset(files(tmp_path / "out")).to_table()["offset"].to_pylist()) == list(range(1001))


def test_a_row_that_is_too_large_leaves_nothing_behind(spark, settings, tmp_path):
    rows = select_exported_rows(spark, settings, TABLE, "offset < 3", {})
    with pytest.raises(UsageError, match=r"one row of the table takes \d+ bytes, but --max-file-size allows only 50"):
        export_frame(rows, str(tmp_path / "o"), FileFormat.CSV, 50, overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_exported_as_of_a_version_and_of_a_time(spark, settings):
    lake = Lake(settings)
    first = lake.open_delta_table(spark, TABLE).history().where("version = 1").first()["timestamp"].replace(tzinfo=UTC)
    for moment in (create_time_travel_option(1, None), create_time_travel_option(None, first.isoformat())):
        assert select_exported_rows(spark, settings, TABLE, None, moment).count() == 1000
    with pytest.raises(UsageError, match="version 9"):
        select_exported_rows(spark, settings, TABLE, None, create_time_travel_option(9, None))
    with pytest.raises(UsageError, match="nothing"):
        select_exported_rows(spark, settings, TABLE, "nothing = 1", {})


def test_only_an_earlier_export_is_replaced_and_only_if_asked_to(spark, settings, tmp_path):
    def write(where: str, *, overwrite: bool) -> None:
        rows = select_exported_rows(spark, settings, TABLE, where, {})
        export_frame(rows, str(tmp_path / "out"), FileFormat.JSONL, WIDE, overwrite=overwrite)

    (tmp_path / "out").mkdir()
    write("offset < 2", overwrite=False)
    with pytest.raises(UsageError, match=r"out is not empty\. .*--overwrite"):
        write("offset < 3", overwrite=False)
    write("offset < 3", overwrite=True)
    assert len(files(tmp_path / "out")[0].read_text().splitlines()) == 3
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(UsageError, match="has files that are not from an export"):
        write("offset < 4", overwrite=True)
    assert (tmp_path / "out" / "mine.txt").exists()


def test_the_output_of_another_writer_is_no_earlier_export(spark, settings, tmp_path):
    rows = select_exported_rows(spark, settings, TABLE, "offset < 2", {})
    rows.write.json(str(tmp_path / "out"))
    with pytest.raises(UsageError, match="has files that are not from an export"):
        export_frame(rows, str(tmp_path / "out"), FileFormat.JSONL, WIDE, overwrite=True)


def test_what_a_committer_leaves_beside_rows_is_not_in_the_folder_and_an_export_over_it_goes(
    spark, settings, tmp_path, monkeypatch
):
    def noted(rows: Any, into: Any, *rest: Any) -> None:
        write(rows, into, *rest)
        for name in ("_started_7", "_committed_7"):  # as Databricks' does
            Path(into.path, name).touch()

    write = module._write_export_files
    monkeypatch.setattr(module, "_write_export_files", noted)
    for overwrite in (False, True):
        rows = select_exported_rows(spark, settings, TABLE, "offset < 2", {})
        export_frame(rows, str(tmp_path / "out"), FileFormat.JSONL, WIDE, overwrite=overwrite)
        assert len(files(tmp_path / "out")) == 1


def test_a_view_is_exported_as_it_is_now_and_has_no_versions(spark, settings, tmp_path):
    view = "gold.data_quality"
    require_exportable_table(settings, view, {})
    told = export_frame(
        select_exported_rows(spark, settings, view, None, {}),
        str(tmp_path / "o"),
        FileFormat.JSONL,
        WIDE,
        overwrite=False,
    )
    assert told.rows == 3  # of each topic; rows without one are no messages
    assert {json.loads(line)["hour"] for line in files(tmp_path / "o")[0].read_text().splitlines()} == {
        "2026-01-02T03:00:00.000000Z"
    }
    with pytest.raises(UsageError, match="is a view, and only tables have versions"):
        require_exportable_table(settings, view, create_time_travel_option(1, None))
    with pytest.raises(LakeError, match=r"silver\.sessions does not exist yet"):
        require_exportable_table(settings, "gold.session_summary", {})


def test_a_condition_that_fails_when_it_is_computed_is_reported(spark, settings, tmp_path, monkeypatch):
    monkeypatch.setattr("sessionlake.cli.export.call_with_spark", lambda _, work: work(spark))
    wrong = ["export", TABLE, str(tmp_path / "o"), "--where", "offset / 0 = 1"]
    result = CliRunner().invoke(app, wrong, env={"SESSIONLAKE_HOME": str(settings.home)})
    assert result.exit_code == 1
    assert "error: export: " in result.stderr
    assert "DIVIDE_BY_ZERO" in result.stderr
    assert not (tmp_path / "o").exists()


def test_no_rows_are_an_export_too(spark, settings, tmp_path):
    rows = select_exported_rows(spark, settings, TABLE, "false", {})
    told = export_frame(rows, str(tmp_path / "o"), FileFormat.PARQUET, 9999, overwrite=False)
    assert told.rows == 0
    with pytest.raises(UsageError, match="allows only 10"):
        export_frame(rows, str(tmp_path / "small"), FileFormat.PARQUET, 10, overwrite=False)
    assert "offset" in ds.dataset(files(tmp_path / "o")).schema.names


@pytest.mark.parametrize(("text", "size"), [("500kB", 500_000), ("1GiB", 1 << 30), ("7", 7)])
def test_sizes_are_read(text, size):
    assert parse_number_of_bytes(text) == size


@pytest.mark.parametrize("text", ["0", "-1MB", "many", "5 apples"])
def test_what_is_no_size_is_reported(text):
    with pytest.raises(UsageError, match="as in 500kB"):
        parse_number_of_bytes(text)
