"""A feed whose columns have every type, through the whole lake: every table equals a plain fold of the messages."""

from __future__ import annotations

import base64
import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from operator import and_, itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import functions as F

from sessionlake.cli.export import select_exported_rows
from sessionlake.cli.gold import verify_gold_tables
from sessionlake.cli.session import show_session
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.export import FileFormat, export_frame
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, ROWS, RULE_EVENTS
from sessionlake.delta.storage import spark_writes
from sessionlake.delta.storage.spark_reader import SparkReader, to_spark_literal
from sessionlake.delta.storage.spark_writes import _build_pruning_bounds
from sessionlake.feeds.events import DecodedMessage, RowUpsert
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.gold import job
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.history.asof import session_as_of
from sessionlake.history.explain import explain
from sessionlake.operations.pipeline import Layer
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.operations.resharding.reshard import reshard_layers
from sessionlake.protocol.columns import create_column_of_feed
from sessionlake.protocol.upserts import CHANGE, VERSION, UpsertMessageEncoder
from sessionlake.silver.tables.snapshots import ROW_KEY
from support.lakes import limit
from support.typed_feed import LATER, TOPIC, TYPES, VALUES, capture
from support.typed_lake import COUNT, EXECUTED, PART, TypedLake, in_order


@pytest.fixture(scope="module")
def typed(spark: Any, module_location: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedLake]:
    folder = tmp_path_factory.mktemp("processors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield TypedLake(spark, module_location, folder)


def test_rows_and_past_tables_equal_a_plain_fold(typed: TypedLake) -> None:
    assert typed.rows() == typed.expected()
    assert in_order(SparkReader(typed.lake.storage, typed.spark).read_rows(ROWS)) == typed.expected()
    for offset in (10, 33, COUNT - 1):
        for session in ("s0", "s1", "s2"):
            found = session_as_of(typed.settings, session, TOPIC, offset=offset, spark=typed.spark).to_pylist()
            wanted = [row for row in typed.expected(offset + 1) if row["session_id"] == session]
            assert in_order({"session_id": session, **row} for row in found) == wanted
    assert verify_silver_tables(typed.spark, typed.settings).is_exact


def test_conditions_of_merges_and_readers_keep_the_rows_with_these_values(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simple = {sql: values for sql, values in VALUES.items() if not sql.startswith("array")}
    names = {sql: f"c{place}" for place, sql in enumerate(simple)}
    schema = pa.schema([(name, create_column_of_feed(name, sql).arrow) for sql, name in names.items()])
    rows = [{names[sql]: values[number % len(values)] for sql, values in simple.items()} for number in range(3)]
    source = pa.Table.from_pylist(rows, schema)
    local = names["timestamp_ntz"]  # Spark reads Arrow's times without zone as times in the session's zone
    frame = spark.createDataFrame(source).withColumn(local, F.col(local).cast("timestamp_ntz"))
    for most in (1_000, 0):
        monkeypatch.setattr(spark_writes, "_MAX_NAMED_VALUES", most)
        for given in (source, frame):
            bounds = reduce(and_, (_build_pruning_bounds(given, name) for name in names.values()))
            assert frame.alias("t").where(bounds).count() == len(rows)
    for row in rows:
        same = reduce(and_, (F.col(name) == to_spark_literal(value) for name, value in row.items()))
        assert frame.where(same).toArrow().to_pylist() == [row]


def test_exported_files_have_exact_values(typed: TypedLake, tmp_path: Any) -> None:
    rows = select_exported_rows(typed.spark, typed.settings, ROWS, None, {})
    for form in FileFormat:
        export_frame(rows, str(tmp_path / form), form, 1 << 40, overwrite=False)
    files = {form: sorted((tmp_path / form).glob("part-*")) for form in FileFormat}
    assert in_order(ds.dataset(files[FileFormat.PARQUET]).to_table().to_pylist()) == typed.expected()
    lines = [
        json.loads(line, parse_float=Decimal)
        for file in files[FileFormat.JSONL]
        for line in file.read_text().splitlines()
    ]
    cells = [cell for file in files[FileFormat.CSV] for cell in csv.DictReader(file.open(newline=""))]
    assert len(lines) == len(cells) == len(typed.expected())
    for row, line, cell in zip(typed.expected(), in_order(lines), in_order(cells), strict=True):
        assert [line[name] for name in ("total", "cents", "wide")] == [row[n] for n in ("total", "cents", "wide")]
        assert cell["wide"] == ("" if row["wide"] is None else f"{row['wide']:f}")
        local = None if row["local"] is None else row["local"].isoformat(timespec="microseconds")
        assert (line["local"], cell["local"]) == (local, local or "")
        assert line["shares"] == row["shares"]
        blobs = row["blobs"] and [one if one is None else base64.b64encode(one).decode() for one in row["blobs"]]
        assert line["blobs"] == blobs
        assert json.loads(cell["blobs"] or "null") == blobs


def test_published_messages_have_exact_values(typed: TypedLake) -> None:
    changes = typed.lake.read(typed.spark, ROWS).withColumns({CHANGE: F.lit("insert"), VERSION: F.lit(1).cast("long")})
    made = UpsertMessageEncoder(ROW_KEY, batch=1)(changes.toArrow().to_batches())
    sent = [json.loads(row["value"]) for batch in made for row in batch.to_pylist()]
    for row, message in zip(typed.expected(), in_order(sent), strict=True):
        for name in ("total", "cents", "wide"):
            assert message[name] == (None if row[name] is None else f"{row[name]:f}")
        assert message["shares"] == (row["shares"] and [one if one is None else f"{one:f}" for one in row["shares"]])
        assert message["raw"] == (None if row["raw"] is None else base64.b64encode(row["raw"]).decode())
        assert message["grid"] == row["grid"]


def test_a_session_is_shown_with_exact_values(typed: TypedLake, capsys: pytest.CaptureFixture[str]) -> None:
    show_session(typed.lake.reader(typed.spark), typed.settings, "s0", None, OutputFormat.JSON)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row, line in zip((row for row in typed.expected() if row["session_id"] == "s0"), lines, strict=True):
        assert line["wide"] == (None if row["wide"] is None else f"{row['wide']:f}")
        assert line["raw"] == (None if row["raw"] is None else base64.b64encode(row["raw"]).decode())
        assert line["local"] == (row["local"] and row["local"].isoformat())


def test_gold_computes_with_decimals_and_joins_decimals_and_dates(typed: TypedLake) -> None:
    typed.write_rules_and_references()
    typed.run(Layer.GOLD)
    typed.run(Layer.PROCESSOR)
    said: list[str] = []
    assert verify_gold_tables(typed.spark, typed.settings, said.append), said
    assert {"cents", "total", "wide"} <= {row["metric"] for row in typed.read("gold.figures")}
    assert {row["rule"] for row in typed.read(RULE_EVENTS)} == {"paid", "low"}
    joined = typed.read("gold.joined")
    assert all((row["label"] is None) == (row["cents"] is None) for row in joined if row["cents"] in _amounts(typed))
    assert {row["label"] for row in joined} - {None} <= {str(amount) for amount in _amounts(typed)}
    paid = defaultdict(Decimal)
    for row in typed.expected():
        if row["day"] is not None and row["total"] is not None:
            paid[row["day"]] += row["total"]
    assert {row["day"]: row["paid"] for row in typed.read("gold.by_day")} == paid


def test_products_of_a_decimal_column_are_exact(typed: TypedLake) -> None:
    typed.run(Layer.GOLD)
    tables = [one for one in list_declared_gold_tables(typed.settings) if one.table_name in ("gold.exact", "gold.paid")]

    def check() -> None:
        values = defaultdict[tuple[str, str], list[Decimal]](list)
        changes = [row for row in typed.read(CHANGES) if row["change"] == "upsert"]
        for row in sorted(changes, key=itemgetter("_ts", "_position", "ordinal")):
            if "wide" in row["_set"] and row["wide"] is not None:
                values[row["session_id"], row["row_id"]].append(row["wide"])
        expected = {key: _exact_results(numbers, 10) for key, numbers in values.items()}
        columns = ("count", "sum", "min", "max", "mean", "first", "last")
        found = {(row["session_id"], row["row_id"]): row for row in typed.read("gold.exact")}
        assert {key: tuple(row[name] for name in columns) for key, row in found.items()} == expected
        totals = [row["total"] for row in changes if "total" in row["_set"] and row["total"] is not None]
        [row] = typed.read("gold.paid")
        count, total, _, _, mean, _, _ = _exact_results(totals, 4)
        assert (row["metric"], row["n"], row["total"], row["mean"]) == ("total", count, total, mean)
        verified = verify_gold(typed.spark, typed.settings, tables)
        assert {one.first_difference for one in verified} == {None}
        ([explained], _) = explain(typed.spark, typed.settings, "gold.paid", "")
        assert explained.events == count

    check()
    job.rebuild_tables(typed.spark, typed.settings, tables)
    check()
    wrong = "UPDATE {} SET total = total + CAST('0.0001' AS DECIMAL(38,4))"
    typed.spark.sql(wrong.format(Lake(typed.settings).to_sql_identifier("gold.paid")))
    assert [one.table for one in verify_gold(typed.spark, typed.settings, tables) if one.different_rows] == [
        "gold.paid"
    ]
    job.rebuild_tables(typed.spark, typed.settings, tables)


@pytest.mark.soak  # unit/test_exact_averages and spark/test_gold have decimals, too
def test_averages_of_decimals_are_exact_and_rebuilt_alike(typed: TypedLake) -> None:
    typed.run(Layer.GOLD)
    tables = [one for one in list_declared_gold_tables(typed.settings) if isinstance(one, RollingAverage)]

    def check() -> None:
        lines = defaultdict[tuple[str, ...], list[Decimal]](list)
        changes = [row for row in typed.read(CHANGES) if row["change"] == "upsert"]
        expected = {}
        for row in sorted(changes, key=itemgetter("_ts", "_position", "ordinal")):
            for metric in ("wide", "total"):
                if metric in row["_set"] and row[metric] is not None:
                    key = (row["session_id"], row["row_id"], metric)
                    lines[key].append(row[metric])
                    last = lines[key][-8:]
                    mean = float(sum(map(Fraction, last)) / len(last))
                    expected[*key, row["_position"], row["ordinal"]] = (
                        float(row[metric]),
                        mean,
                        len(last),
                        row[metric],
                    )
        found = {
            (*(row[name] for name in ("session_id", "row_id", "metric", "position", "ordinal")),): (
                *(row[name] for name in ("value", "average", "points")),
                row["_units"] and row["_units"].scaleb(-row["_scale"], Context(prec=80)),
            )
            for row in typed.read("gold.rolling_average")
            if row["metric"] in ("wide", "total")
        }
        assert found == expected
        assert {one.first_difference for one in verify_gold(typed.spark, typed.settings, tables)} == {None}

    check()
    assert {row["_units"] for row in typed.read("gold.rolling_average") if row["metric"] == "price"} == {None}
    job.rebuild_tables(typed.spark, typed.settings, tables)
    check()
    wrong = "UPDATE {} SET average = average * 1.00000001 WHERE metric = 'wide' AND average <> 0"
    typed.spark.sql(wrong.format(Lake(typed.settings).to_sql_identifier("gold.rolling_average")))
    different = [one.table for one in verify_gold(typed.spark, typed.settings, tables) if one.different_rows]
    assert "gold.rolling_average" in different
    job.rebuild_tables(typed.spark, typed.settings, tables)


def _exact_results(values: list[Decimal], scale: int) -> tuple[Any, ...]:
    """Returns count, sum, min, max, mean, first and last. The sum is None if it has more than 38 digits."""
    total = sum(map(Fraction, values))
    fits = abs(total * 10**scale) < 10**38
    return (
        len(values),
        total if fits else None,
        min(values),
        max(values),
        float(total / len(values)),
        values[0],
        values[-1],
    )


def _amounts(typed: TypedLake) -> set[Decimal]:
    return {row["cents"] for row in typed.expected()} - {None}


def test_processors_get_python_values_of_each_type(typed: TypedLake) -> None:
    typed.run(Layer.PROCESSOR)
    feed, totals, wanted = typed.settings.capture.feeds[0].build(), defaultdict[str, Decimal](Decimal), []
    for message in typed.messages[:COUNT]:
        place = (message.topic, message.partition, message.offset, message.timestamp, message.key, message.value)
        decoded = read_record(feed, KafkaRecord(*place))
        assert isinstance(decoded, DecodedMessage)
        (event,) = decoded.events
        for row in (row for row in event.rows if isinstance(row, RowUpsert)):
            values = dict.fromkeys(feed.columns) | row.values if event.kind == "snapshot" else row.values
            totals[event.session] += values.get("total") or 0
            content = EXECUTED["text"](values), totals[event.session]
            wanted.append((event.session, message.offset, row.row_id, *content))
    found = [
        tuple(r[n] for n in ("session_id", "_offset", "row", "content", "amount")) for r in typed.read("silver.seen")
    ]
    assert sorted(found) == sorted(wanted)
    kept = [(row["cents"], row["row"], row["day"], row["raw"]) for row in typed.read("silver.kept")]
    rows = [row for row in typed.expected() if row["cents"] is not None]
    assert sorted(kept, key=str) == sorted(
        ((row["cents"], row["session_id"] + row["row_id"], row["day"], row["raw"]) for row in rows), key=str
    )


# The last test by place here, and by name in `catalog/test_feed_types`: it changes the lake that all of them share.
def test_with_lost_rows_tables_are_rebuilt_and_a_later_column_is_added(
    typed: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed.lake.open_delta_table(typed.spark, ROWS).delete("cents > 0")
    assert typed.rows() != typed.expected()
    rebuild_silver_tables(typed.spark, typed.settings)
    assert typed.rows() == typed.expected()

    silver = typed.settings.silver.model_copy(update={"shards": 3})
    typed.settings = typed.settings.model_copy(update={"silver": silver})
    reshard_layers(typed.spark, typed.settings, 3)
    typed.settings = typed.settings.model_copy(update={"capture": capture(TYPES | LATER)})
    limit(monkeypatch, driver_changes=-1)  # merged by Spark, as a large batch is
    typed.arrive(COUNT, COUNT + PART)
    expected = typed.expected(COUNT + PART)
    assert typed.rows() == in_order(expected)
    later = {(row["session_id"], row["row_id"]): (row["later"], row["times"]) for row in typed.read(ROWS)}
    assert later == {(row["session_id"], row["row_id"]): (row["later"], row["times"]) for row in expected}
