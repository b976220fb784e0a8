"""Who commits a table's rows is the module that its definition names."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.cli.rules import load_alert_rules, write_alert_rules
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas import names
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.gold.declared.references import list_declared_references
from sessionlake.gold.declared.tables import build_declared_gold_schemas
from sessionlake.gold.references.writing import write_reference_rows
from sessionlake.processors import job as processors
from sessionlake.settings.model import CaptureSettings, GoldSettings, ProcessorSettings, Settings, SilverSettings
from sessionlake_lab.truth import KafkaMessage
from support.lakes import write_bronze
from support.layers import run_layers

# Written with Kafka, archives or HTTP, in a catalog, by an operation, or where something fails.
NOT_WRITTEN_HERE = {
    *(names.MESSAGES, names.DAMAGED, names.TOPICS, names.ABSENT, names.LEASES),
    *(names.DECISIONS, names.POSITIONS, names.RETAINED, names.ERASURES),
    *(names.PROCESSOR_ERRORS, names.LOOKUP_FAILURES),
}
# A changed reference table has rows joined again that are there.
ALSO_WRITTEN_BY = {"gold.with_rooms": "gold.references.corrections"}
START = 1_700_000_000_000
MINUTE = 60_000
RULES = """
rules:
  - {name: high, when: sum(price) over 3 min > 0}
  - {name: twice, when: price >= 0 then price >= 0 within 5 min}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    each = {"name": "each", "keys": ["topic", "session_id"], "bucket": "1 minute", "lateness": "30 s"}
    counted = {"aggregates": {"n": "count"}}
    gold = {
        "averages": [{"name": "by_metric", "keys": ["topic", "metric"]}],
        "products": [
            each | counted | {"output": "append"},
            {"name": "by_row", "source": names.ROWS, "keys": ["topic", "row_id"]} | counted,
        ],
        "references": [{"name": "rooms", "keys": {"topic": "string"}, "columns": {"room": "string"}}],
        "enriched": [{"name": "with_rooms", "join": [{"reference": "rooms", "keys": {"topic": "topic"}}]}],
    }
    return Settings(
        home=tmp_path / "home",
        capture=CaptureSettings(columns={"price": "double", "status": "string"}, on_violation="isolate"),
        silver=SilverSettings(shards=2, snapshot_interval="1 minute"),
        processors=(ProcessorSettings(name="top", target="sessionlake.examples.top_of_book:TopOfBook"),),
        gold=GoldSettings.model_validate(gold),
    )


def messages(first: int, count: int) -> Iterator[KafkaMessage]:
    """A session's messages, one a minute; in a later batch, the first one has the event time of the first of all."""
    for seq in range(first, first + count):
        ts = START if first and seq == first else START + seq * MINUTE
        row = {"id": "r", "price": float(seq), "status": f"s{seq % 3}"}
        body = {"type": "update" if seq else "snapshot", "seq": seq, "ts": ts, "rows": [row]}
        yield KafkaMessage("capture.a", 0, seq, START + seq * MINUTE, b"s", json.dumps(body).encode())


def broken(offset: int) -> list[KafkaMessage]:
    """A message that is no JSON, and one behind it whose predecessor is missing: it breaks its session."""
    at = START + offset * MINUTE
    gap = {"type": "update", "seq": offset + 100, "ts": at, "rows": []}
    return [
        KafkaMessage("capture.a", 0, offset, at, b"s", b"{"),
        KafkaMessage("capture.a", 0, offset + 1, at, b"s", json.dumps(gap).encode()),
    ]


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[set[str]]]:
    """By table, of each commit the modules of the package that call each other to make it."""
    found = defaultdict(list)

    def recording(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(storage: FolderStorage, spark: Any, table: str, *rest: Any, **named: Any) -> Any:
            found[table].append(set(modules()))
            return write(storage, spark, table, *rest, **named)

        return call

    for name in ("append_rows", "stage_rows", "merge_rows", "combine_and_merge_rows", "replace_rows"):
        monkeypatch.setattr(FolderStorage, name, recording(getattr(FolderStorage, name)))
    return found


def modules() -> Iterator[str]:
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("sessionlake."):
            yield module.removeprefix("sessionlake.")
        frame = frame.f_back


def run(spark: Any, settings: Settings, *come: KafkaMessage) -> None:
    write_bronze(spark, Lake(settings), come)
    run_layers(spark, settings)
    for own in settings.processors:
        processors.start(spark, settings, own.name, once=True).wait()


def test_a_table_s_rows_are_committed_by_the_module_that_its_definition_names(
    spark: Any, settings: Settings, stacks: dict[str, list[set[str]]], tmp_path: Path
) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [names.MESSAGES])
    file = tmp_path / "rules.yml"
    file.write_text(RULES)
    write_alert_rules(spark, settings, load_alert_rules(settings, file), print, only=False)
    run(spark, settings, *messages(0, 10))
    [rooms] = list_declared_references(settings)
    row = {"topic": "capture.a", "valid_from": datetime.fromtimestamp(0, UTC), "valid_to": None, "room": "one"}
    write_reference_rows(spark, lake, rooms, pa.Table.from_pylist([row], rooms.arrow_schema()), datetime.now(UTC))
    run(spark, settings, *messages(10, 5), *broken(15))

    writers = {table: schema.written_by for table, schema in (TABLES | build_declared_gold_schemas(settings)).items()}
    writers |= {"silver.top": "processors.job", "gold.by_row": "processors.keyed"}
    stacks.pop(names.MESSAGES)  # by the test
    assert writers.keys() - stacks.keys() == NOT_WRITTEN_HERE
    wrong = {
        table: modules
        for table, made in stacks.items()
        for modules in made
        if not modules & {writers[table], ALSO_WRITTEN_BY.get(table)}
    }
    assert wrong == {}
