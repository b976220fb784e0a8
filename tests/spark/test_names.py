"""Names of any kind in a real lake: whatever users call columns, keys and results, every table is right.

One lake has them all: a column each for names that SQL, Delta, Arrow or Python could read otherwise, and for names that
our own queries and frames have.
"""

from __future__ import annotations

import json
import random
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sessionlake.cli import gold as gold_commands
from sessionlake.cli.query import fetch_query_result
from sessionlake.cli.rebuild import verify_silver
from sessionlake.delta.commit import replace_rows
from sessionlake.delta.export import FileFormat, export_frame
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, ROWS
from sessionlake.gold.sql.figures_with import create_sql_function_figures_with
from sessionlake.gold.sql.views import create_sql_function_data_quality_since, create_views
from sessionlake.history.asof import session_as_of
from sessionlake.history.explain import explain
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.processors.difference import compare_tables
from sessionlake.protocol.columns import BUILT_IN_COLUMNS
from sessionlake.protocol.names import quote
from sessionlake.protocol.upserts import UpsertMessageEncoder
from sessionlake.publish.publishable import require_publishable
from sessionlake.settings.gold import AggregateKind, GoldSettings
from sessionlake.settings.model import CaptureSettings, ProcessorSettings, Settings, SilverSettings, TopicRule
from sessionlake.silver.merge.sql_function import create_session_as_of
from sessionlake_lab.truth import KafkaMessage
from support.lakes import assert_silver_is_the_truth, limit, rows_of, write_bronze
from support.named_processors import NAMES as WRITTEN
from support.named_processors import TEXTS, TIME
from support.names import STRANGE, own_names, usable

pytestmark = [pytest.mark.spark, pytest.mark.soak]
NAMES = usable([*STRANGE, *random.Random(1).sample(own_names(), 60)], *BUILT_IN_COLUMNS)
# Gold asks once for each number and each text: most columns are neither.
TYPES = ("double", "string", "bigint", *["boolean"] * 9)
COLUMNS = {name: "string" if name in ("id", "s", "a.b") else TYPES[i % len(TYPES)] for i, name in enumerate(NAMES)}
TEXT, NUMBER = "a.b", next(name for name in NAMES if COLUMNS[name] == "double")
STRICT, ONCE = "capture.strict", "capture.once"
SECOND = 1_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = [kind.value for kind in AggregateKind if kind is not AggregateKind.APPROX_DISTINCT]
OF_ANY = [kind for kind in KINDS if kind not in ("first", "last")]
CHOSEN = [name for name in NAMES if name not in {"ts", "offset", "position"}][:40]
RESULTS = [name for name in WRITTEN if name not in TEXTS][:40]
ENRICHED = "gold.distinct"
COUNTED, READ = "SELECT sum(messages) FROM {}(timestamp_seconds(0))", "SELECT {} FROM silver.session_rows AS t"


def product(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


SELECT = usable(CHOSEN, "topic", "session_id", "_batch", "partition", "window_start")
GOLD: dict[str, Any] = {
    "shards": 2,
    "change_feed": ["values", "distinct"],
    "products": [
        {
            "name": "select",
            "keys": ["topic", "session_id"],
            "bucket": "10 seconds",
            "lateness": "20 seconds",
            "output": "append",
            "aggregates": {name: OF_ANY[i % len(OF_ANY)] for i, name in enumerate(SELECT)},
        },
        {
            "name": "values",
            "keys": ["topic", "session_id", "row_id", "metric"],
            "aggregates": {name: KINDS[i % len(KINDS)] for i, name in enumerate(CHOSEN)},
        },
        {
            "name": "order",
            "of": "texts",
            "keys": ["value"],
            "aggregates": {
                "t": "count",
                "here": "approx_distinct",
                "column": "count",
                ".x": "first_ts",
                "_y": "last_ts",
            },
        },
        {
            "name": "group",
            "source": "silver.table",
            "keys": TEXTS,
            "time": TIME,
            "value": "shard",
            "order": ["topic", "_position"],
            "bucket": "10 seconds",
            "aggregates": {name: KINDS[i % len(KINDS)] for i, name in enumerate(RESULTS) if name != "window_start"},
        },
        {
            "name": "by",
            "source": "gold.group",
            "keys": ["value"],
            "value": RESULTS[1],
            "aggregates": {
                "t": "count",
                "s": "sum",
                "shard": "mean",
                "ts": "variance",
                "offset": "max",
                "ordinal": "min",
            },
        },
    ],
    "references": [
        {
            "name": "order",
            "keys": {"begin": "string", "~key": "string"},
            "columns": {"end": "double", "at.": "string"},
        },
    ],
    "enriched": [
        {
            "name": "distinct",
            "columns": CHOSEN,
            "join": [
                {
                    "reference": "order",
                    "keys": {"begin": TEXT, "~key": "s"},
                    "take": {"~end": "end", "valid.to": "at."},
                }
            ],
        },
    ],
}


def messages(rnd: random.Random, count: int) -> list[KafkaMessage]:
    """Two sessions; of the second, messages come out of order."""
    values = {"double": (1.5, -2.0), "string": ("x", "y"), "bigint": (1, 2), "boolean": (True, False)}
    names, found = [name for name in NAMES if name != "id"], []
    for topic in (STRICT, ONCE):
        order = [0, 1, 5, 3, 4, 2, *range(6, count)] if topic == ONCE else [*range(count)]
        for offset, seq in enumerate(order):
            rows = [
                {name: rnd.choice([None, *values[COLUMNS[name]]]) for name in rnd.sample(names, len(names) * 3 // 4)}
                | {"id": row}
                for row in rnd.sample("pqr", rnd.randint(1, 3))
            ]
            kind = "snapshot" if seq % 7 == 0 else "end" if seq == count - 1 else "update"
            body: dict[str, Any] = {"type": kind, "seq": seq, "ts": seq * 4 * SECOND}
            body |= {} if kind == "end" else {"rows": rows}
            body |= {"deleted": ["q"]} if kind == "update" and seq % 5 == 4 else {}
            found.append(KafkaMessage(topic, 0, offset, offset * 4 * SECOND, b"s", json.dumps(body).encode()))
    return sorted(found, key=lambda message: message.timestamp)


class Names:
    """A lake whose columns have every name."""

    def __init__(self, spark: Any, location: dict[str, Any]) -> None:
        rules = (TopicRule(pattern=r".*once", integrity="once"),)
        capture = CaptureSettings(columns=COLUMNS, by_topic=rules, on_violation="record")
        module, keyed = "support.named_processors", {"key": TEXTS[:2], "source": "silver.table"}
        processors = (
            ProcessorSettings(name="table", target=f"{module}:Writes"),
            ProcessorSettings(name="here", target=f"{module}:Adds", order=("topic", "_position", "ordinal"), **keyed),
        )
        silver = SilverSettings(shards=2, snapshot_interval="7 s")
        gold = GoldSettings.model_validate(GOLD)
        self.spark = spark
        self.settings = Settings(**location, capture=capture, silver=silver, processors=processors, gold=gold)
        self.lake, self.sent = Lake(self.settings), list[KafkaMessage]()
        self.lake.create_or_update_tables(spark, ["bronze.messages"])

    def arrive(self, found: list[KafkaMessage]) -> None:
        write_bronze(self.spark, self.lake, found)
        self.sent += found
        for layer in (Layer.SILVER, Layer.PROCESSOR, Layer.GOLD):
            run_once(self.spark, self.settings, layer, threading.Event())

    def write_reference(self) -> None:
        """What others say of each text, and another thing from a moment on."""
        schema = self.lake.reader(self.spark).read_table_schema("reference.order")
        spans = [(0, 10, 1.0), (10, None, 2.0)]
        rows = [
            {"begin": begin, "~key": key, "end": end, "at.": f"{begin}{key}"}
            | {"valid_from": EPOCH + timedelta(seconds=since), "valid_to": until and EPOCH + timedelta(seconds=until)}
            for begin in "xy" for key in "xy" for since, until, end in spans
        ]  # fmt: skip
        replace_rows(self.spark, self.lake, "reference.order", pa.Table.from_pylist(rows, schema))


@pytest.fixture(scope="module")
def names(spark: Any, module_location: dict[str, Any]) -> Names:
    """Two batches, of which the second is worked on by the cluster, with a reference that comes between them."""
    made = Names(spark, module_location)
    every = messages(random.Random(5), 12)
    made.arrive(every[:12])
    made.write_reference()
    with pytest.MonkeyPatch.context() as patch:
        limit(patch, driver_changes=0, driver_cuts=0, driver_bytes=0)
        made.arrive(every[12:])
    # Without driver memory gold skipped the reference; this run reads it.
    run_once(spark, made.settings, Layer.GOLD, threading.Event())
    return made


def test_silver_is_the_truth_and_a_replay_finds_the_same(names: Names) -> None:
    assert_silver_is_the_truth(names.spark, names.settings, names.sent)
    said: list[str] = []
    assert verify_silver(names.spark, names.settings, said.append), said


def test_a_declared_column_id_holds_the_row_s_id(names: Names) -> None:
    rows = rows_of(names.spark, names.lake, ROWS)
    assert rows
    assert [row["id"] for row in rows] == [row["row_id"] for row in rows]


def test_gold_is_exact_and_every_table_has_rows(names: Names) -> None:
    said: list[str] = []
    exact = gold_commands.verify_gold_tables(names.spark, names.settings, said.append)
    assert [line for line in said if " exact" not in line] == []
    assert exact
    tables = {"gold.select", "gold.select_final", "gold.values", "gold.order", "gold.group", "gold.by", ENRICHED}
    for table in (*tables, "silver.table", "silver.here"):
        assert rows_of(names.spark, names.lake, table), table
    assert {one.split()[0] for one in said if " is exact" in one} >= tables


def test_tables_made_again_are_what_they_were(names: Names) -> None:
    spark, lake = names.spark, names.lake
    for table, keys in (("gold.select", ["topic", "session_id", "window_start"]), ("gold.by", ["value"])):
        before = lake.read(spark, table).localCheckpoint()
        gold_commands.rebuild_gold_tables(spark, names.settings, table, print)
        assert not compare_tables(before, lake.read(spark, table), keys), table


def test_a_moment_of_a_session_is_the_same_in_python_and_in_sql(names: Names) -> None:
    at = names.sent[13].timestamp
    local = session_as_of(names.settings, "s", STRICT, ts=at)
    name = create_session_as_of(names.spark, names.lake)
    names.lake.make_tables_queryable_by_sql(names.spark)
    sql = "SELECT * FROM {}('s', timestamp_millis({})) WHERE topic = '{}' ORDER BY row_id"
    found = names.spark.sql(sql.format(name, at, STRICT)).toArrow()
    assert found.select(local.column_names).to_pylist() == local.to_pylist()
    assert local.num_rows


def test_sql_says_which_figures_a_message_is_in_and_python_what_a_figure_is_made_of(names: Names) -> None:
    names.lake.make_tables_queryable_by_sql(
        names.spark, [*names.lake.make_tables_queryable_by_sql(names.spark), "gold.select", "gold.values", "gold.order"]
    )
    name = create_sql_function_figures_with(names.spark, names.lake)
    sql = "SELECT DISTINCT `table` FROM {}('{}', 0, 1L)"
    tables = names.spark.sql(sql.format(name, STRICT)).collect()
    assert {row[0] for row in tables} >= {"gold.rolling_average", "gold.select", "gold.values", ENRICHED}
    for table in ("gold.select", "gold.values", "gold.order", ENRICHED):
        [one], more = explain(names.spark, names.settings, table, "", at_most=1)
        assert one.events > 0, table
        assert more
    [one], _ = explain(names.spark, names.settings, "gold.order", "", at_most=1)
    assert one.figures.keys() == {"t", "here", "column", ".x", "_y"}


def test_views_and_queries_take_the_published_columns_for_what_they_are(names: Names) -> None:
    create_views(names.spark, names.lake)
    since = create_sql_function_data_quality_since(names.spark, names.lake)
    [row] = names.spark.sql(COUNTED.format(since)).collect()
    used = row[0]
    assert used == len(names.sent)
    columns, rows = fetch_query_result(
        names.spark, names.settings, READ.format(", ".join(f"t.{quote(name)}" for name in NAMES))
    )
    assert columns == NAMES
    assert len(list(rows)) == len(rows_of(names.spark, names.lake, ROWS))


def test_exported_files_have_the_columns_under_their_names(names: Names, tmp_path: Path) -> None:
    held = names.lake.read(names.spark, ROWS)
    for form in FileFormat:
        assert export_frame(held, str(tmp_path / form), form, 1 << 30, overwrite=False).rows == held.count()
    assert {*NAMES} <= {*pq.read_table(next((tmp_path / FileFormat.PARQUET).glob("*.parquet"))).column_names}


def test_what_is_published_has_all_results(names: Names) -> None:
    for table in ("gold.values", "gold.by", ENRICHED, ROWS):
        outlet = require_publishable(names.settings, table)
        rows = names.lake.reader(names.spark).read_arrow_table(table)
        sent = outlet.list_columns_to_send(rows.column_names)
        assert not [name for name in sent if name.startswith("__sl_")]
        told = rows.select(sent)
        count = told.num_rows
        told = told.append_column("_change_type", pa.array(["insert"] * count))
        told = told.append_column("_commit_version", pa.array([1] * count, pa.int64()))
        [*made] = UpsertMessageEncoder(outlet.key, 0)(told.combine_chunks().to_batches())
        assert sum(batch.num_rows for batch in made) == count


def test_silver_rebuilt_is_the_truth(names: Names) -> None:
    rebuild_silver_tables(names.spark, names.settings)
    assert_silver_is_the_truth(names.spark, names.settings, names.sent, ledger=False)
    assert CHANGES
