"""Payloads by a registry's schemas through silver, and tables that take on columns declared later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError, SchemaRegistryError
from sessionlake.settings.model import CaptureSettings, Settings, SilverSettings
from sessionlake.settings.section import OnViolation
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake_lab.truth import KafkaMessage
from support.lakes import rows_of, write_bronze
from support.payloads import avro_schema, datum_of, header, serving

NOW = 1_700_000_000_000
PRICE = ("price", ["null", "double"])
QTY = ("qty", ["null", "long"])


def settings_of(home: Path, columns: dict[str, str], **capture: Any) -> Settings:
    found = CaptureSettings(columns=columns, on_violation=OnViolation.ISOLATE, **capture)
    return Settings(home=home, capture=found, silver=SilverSettings(shards=2))


def arrive(spark: Any, settings: Settings, values: list[bytes], first: int = 0) -> None:
    messages = [KafkaMessage("capture.a", 0, first + i, NOW, b"s", value) for i, value in enumerate(values)]
    Lake(settings).create_or_update_tables(spark, ["bronze.messages"])
    write_bronze(spark, Lake(settings), messages)


def run(spark: Any, settings: Settings) -> None:
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).merge_all_pending_batches()


def held(spark: Any, settings: Settings, table: str, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[n] for n in names) for row in rows_of(spark, Lake(settings), table)), key=repr)


def row_schema(*fields: tuple[str, Any]) -> dict[str, Any]:
    return avro_schema([{"name": "id", "type": "string"}, *({"name": n, "type": t} for n, t in fields)])


def message(kind: str, seq: int, *rows: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "seq": seq, "ts": NOW, "rows": list(rows), "deleted": []}


def test_avro_by_a_registry_s_schemas_and_nothing_is_committed_while_it_is_away(spark: Any, tmp_path: Path) -> None:
    old, new = row_schema(PRICE), row_schema(PRICE, QTY)
    with serving() as registry:
        registry.add_avro(1, old)
        registry.add_avro(2, new)
        payload = {"registry_url": registry.url, "registry_auth": "user:hush"}
        settings = settings_of(tmp_path, {"price": "double", "qty": "bigint"}, format="avro", payload=payload)
        values = [
            header(1) + datum_of(old, message("SNAPSHOT", 0, {"id": "a", "price": 1.0}, {"id": "b", "price": 2.0})),
            header(9) + b"?",
            header(2) + b"\xff",
            header(2) + datum_of(new, message("UPDATE", 1, {"id": "a", "price": None, "qty": 4})),
        ]
        arrive(spark, settings, values)
        registry.answer = (503, b"")
        with pytest.raises(
            SchemaRegistryError, match=r"silver: schema registry .* answered /schemas/ids/\d with 503\. Nothing"
        ) as error:
            run(spark, settings)
        assert "hush" not in str(error.value)
        assert held(spark, settings, "ops.ledger", "layer") == []
        registry.answer = None
        run(spark, settings)
    assert held(spark, settings, "silver.session_rows", "row_id", "price", "qty") == [("a", None, 4), ("b", 2.0, None)]
    assert held(spark, settings, "silver.quarantine", "offset", "reason") == [(1, "unknown_schema"), (2, "not_avro")]


def test_a_column_declared_later_is_there_after_a_restart_and_none_is_taken_away_or_changed(
    spark: Any, tmp_path: Path
) -> None:
    before = settings_of(tmp_path, {"price": "double", "qty": "bigint"})
    first = message(
        "snapshot", 0, {"id": "a", "price": 1.0, "qty": 1}, {"id": "b", "price": 2.0, "qty": 2, "note": "x"}
    )
    arrive(spark, before, [json.dumps(first).encode()])
    run(spark, before)

    later = settings_of(tmp_path, {"note": "string", "qty": "bigint", "price": "double"})
    arrive(spark, later, [json.dumps(message("update", 1, {"id": "a", "note": "new"})).encode()], first=1)
    run(spark, later)
    columns = ("row_id", "price", "qty", "note", "_rescued")
    rows = [("a", 1.0, 1, "new", None), ("b", 2.0, 2, None, '{"note":"x"}')]
    assert held(spark, later, "silver.session_rows", *columns) == rows
    changes = [("a", 1.0, 1, None), ("a", None, None, "new"), ("b", 2.0, 2, None), (None, None, None, None)]
    assert held(spark, later, "silver.session_changes", *columns[:-1]) == changes

    arrive(spark, later, [json.dumps(message("update", 2, {"id": "a", "qty": 3})).encode()], first=2)
    for changed, text in (
        (
            {"note": "string", "price": "double"},
            r"_changes: column qty \(bigint\) is in the table but not in .*rebuild silver",
        ),
        ({"qty": "int"}, r"column qty is bigint in the table and int in capture.columns\..*rebuild silver"),
        ({"price": "float"}, "column price is double .* and float in capture.columns"),
        ({"qty": "double"}, "column qty is bigint .* and double in capture.columns"),
    ):
        wrong = changed if len(changed) > 1 else {**later.capture.columns, **changed}
        with pytest.raises(LakeError, match=text):
            run(spark, settings_of(tmp_path, wrong))
    assert held(spark, later, "silver.session_changes", *columns[:-1]) == changes
