"""The notebook runs as it stands, on a laptop's lake and, given what Databricks gives it, by three-level names."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from sessionlake.config import Settings
from sessionlake.lake.tables import Lake

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_explore_session.py"
TOPIC = "capture.boiler"
BUSY, QUIET = "s-busy", "s-quiet"
TABLES = ("silver.sessions", "silver.session_rows", "silver.session_changes", "gold.rolling_average")
# (seconds, value, average of the last two) of r0's price in the busy session.
POINTS = [(0, 10.0, 10.0), (1, 20.0, 15.0), (2, 60.0, 40.0)]


pytestmark = pytest.mark.usefixtures("_at_home")


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    """Tables of two sessions; their short names are this module's while it runs."""
    _forget_names(spark)
    made = Lake(Settings(home=tmp_path_factory.mktemp("notebook") / "home"))
    made.ensure(spark, TABLES)
    _fill(spark, made)
    yield made
    _forget_names(spark)


@pytest.fixture
def _at_home(lake, monkeypatch) -> None:
    """What a laptop's user has set."""
    monkeypatch.setenv("SESSIONLAKE_HOME", str(lake.settings.home))
    monkeypatch.chdir(lake.settings.home.parent)


def test_left_empty_it_shows_the_busiest_sessions_table_and_changes_in_order():
    shown = runpy.run_path(str(NOTEBOOK))
    assert (shown["topic"], shown["session"]) == (TOPIC, BUSY)
    assert [(row["row_id"], row["price"]) for row in shown["rows"].collect()] == [("r0", 60.0), ("r1", None)]
    changes = [(row["_position"], row["ordinal"], row["change"], row["row_id"]) for row in shown["changes"].collect()]
    assert changes == [
        (0, 0, "clear", None),
        (0, 1, "upsert", "r0"),
        (0, 2, "upsert", "r1"),
        (1, 0, "upsert", "r0"),
        (2, 0, "upsert", "r0"),
    ]


def test_the_plot_draws_each_point_and_its_rolling_average(lake, capsys):
    shown = runpy.run_path(str(NOTEBOOK))
    captured, averaged = shown["figure"].axes[0].get_lines()
    assert list(captured.get_ydata()) == [value for _, value, _ in POINTS]
    assert list(averaged.get_ydata()) == [average for _, _, average in POINTS]
    assert (lake.settings.home / "explore_session.png").read_bytes().startswith(b"\x89PNG")
    assert f"plot: {lake.settings.home / 'explore_session.png'}" in capsys.readouterr().out


def test_a_session_and_a_metric_are_chosen_by_name(monkeypatch, capsys):
    monkeypatch.setenv("EXPLORE_SESSION", QUIET)
    monkeypatch.setenv("EXPLORE_METRIC", "qty")
    shown = runpy.run_path(str(NOTEBOOK))
    assert shown["session"] == QUIET
    assert [row["row_id"] for row in shown["rows"].collect()] == ["r9"]
    assert "gold.rolling_average has no such points" in capsys.readouterr().out


def test_an_unknown_session_is_named(monkeypatch):
    monkeypatch.setenv("EXPLORE_SESSION", "s-none")
    with pytest.raises(LookupError, match="there is no session 's-none'"):
        runpy.run_path(str(NOTEBOOK))


def test_an_empty_home_is_named_with_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setenv("SESSIONLAKE_HOME", str(tmp_path / "empty"))
    with pytest.raises(LookupError, match=r"empty has no .*silver\.sessions: run `make demo`"):
        runpy.run_path(str(NOTEBOOK))


def test_on_databricks_widgets_choose_and_display_shows(spark, lake):
    lake.register(spark)
    given = {"catalog": "spark_catalog", "session": QUIET}
    displayed = []
    widgets = SimpleNamespace(text=given.setdefault, get=given.__getitem__)
    shown = runpy.run_path(
        str(NOTEBOOK),
        init_globals={"spark": spark, "dbutils": SimpleNamespace(widgets=widgets), "display": displayed.append},
    )
    assert (shown["location"], shown["session"]) == ("spark_catalog.", QUIET)
    assert displayed[-1] is shown["figure"]
    assert set(given) == {"catalog", "schema_prefix", "session", "row", "metric"}


def test_it_is_a_databricks_source_whose_prose_is_in_markdown_cells():
    first, *cells = NOTEBOOK.read_text().split("\n# COMMAND ----------\n")
    assert first.startswith("# Databricks notebook source\n# MAGIC %md\n")
    for cell in cells:
        magic = [line.startswith("# MAGIC") for line in cell.strip().splitlines()]
        assert all(magic) or not any(magic)


def _fill(spark, lake) -> None:
    key = {"topic": TOPIC, "session_id": BUSY}
    other = {"topic": TOPIC, "session_id": QUIET}
    session = {"status": "open", "duplicates": 0, "gaps": 0, "late": 0, "first_ts": 0}
    _append(
        spark,
        lake,
        "silver.sessions",
        [key | session | {"messages": 3, "last_ts": 2000}, other | session | {"messages": 1, "last_ts": 0}],
    )
    rows = [key | {"row_id": "r1"}, key | {"row_id": "r0", "price": 60.0}, other | {"row_id": "r9", "price": 1.0}]
    _append(spark, lake, "silver.session_rows", rows)
    changes = [
        {"_position": 2, "ordinal": 0, "change": "upsert", "row_id": "r0", "price": 60.0, "_ts": 2000},
        {"_position": 0, "ordinal": 0, "change": "clear", "_ts": 0},
        {"_position": 0, "ordinal": 2, "change": "upsert", "row_id": "r1", "_ts": 0},
        {"_position": 0, "ordinal": 1, "change": "upsert", "row_id": "r0", "price": 10.0, "_ts": 0},
        {"_position": 1, "ordinal": 0, "change": "upsert", "row_id": "r0", "price": 20.0, "_ts": 1000},
    ]
    _append(spark, lake, "silver.session_changes", [key | change for change in changes])
    price = {"row_id": "r0", "metric": "price", "ordinal": 0}
    points = [
        key | price | {"ts": 1000 * second, "position": second, "value": value, "average": average, "points": 2}
        for second, value, average in reversed(POINTS)
    ]
    last = price | {"row_id": "r9", "ts": 0, "position": 0, "value": 1.0, "average": 1.0, "points": 1}
    _append(spark, lake, "gold.rolling_average", [*points, other | last])


def _append(spark, lake, table, rows) -> None:
    schema = lake.read(spark, table).schema
    values = [tuple(row.get(name) for name in schema.names) for row in rows]
    frame = spark.createDataFrame(values, schema).coalesce(1)
    lake.storage.save(frame.write.format("delta").mode("append"), table)


def _forget_names(spark) -> None:
    for schema in ("silver", "gold"):
        spark.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
