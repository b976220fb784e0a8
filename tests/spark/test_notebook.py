"""The notebooks run as they stand, over a home and over a catalog; and what their reader chooses is what they show."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from sessionlake.cli.remote_tables import LAST_HOUR
from sessionlake.cli.sql_names import replace_table_and_function_names
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.spark_reader import SparkReader
from sessionlake.errors import NotFoundError
from sessionlake.notebook.jupyter import convert_to_jupyter, main
from sessionlake.settings.model import Settings, load_settings
from support.lakes import find_table_folder
from support.notebooks import CONFIG, NOTEBOOKS, fill, require_true, run_all

EXPLORE = str(NOTEBOOKS[0])
PICTURES = 8
SCHEMAS = ("bronze", "silver", "gold", "ops")


@pytest.fixture(scope="module")
def filled(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = tmp_path_factory.mktemp("notebook") / "home"
    home.mkdir()
    config = home / "sessionlake.yml"
    config.write_text(CONFIG, encoding="utf-8")
    settings = load_settings(config).model_copy(update={"home": home})
    fill(spark, settings)
    return settings


@pytest.fixture
def home(filled: Settings, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a laptop's user has set."""
    monkeypatch.setenv("SESSIONLAKE_HOME", str(filled.home))
    monkeypatch.chdir(filled.home.parent)
    return filled.home


def test_every_notebook_runs_from_top_to_bottom_and_shows_what_the_tables_hold(spark, filled, home, capsys):
    require_true(spark, filled, run_all())
    pictures = sorted(path.name for path in (home / "notebooks").iterdir())
    assert pictures == [
        "gold_rolling_average.png", "gold_tiers.png", "integrity_judgements.png", "integrity_quarantine.png",
        "operate_pace.png", "own_busy_times.png", "session_metric.png", "session_timeline.png",
    ]  # fmt: skip
    assert len(pictures) == PICTURES
    assert all((home / "notebooks" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert f"picture: {home / 'notebooks' / 'gold_tiers.png'}" in capsys.readouterr().out


@pytest.fixture
def deployed(spark: Any, filled: Settings) -> Iterator[dict[str, str]]:
    """The same tables in a catalog, under a development target's names: what its widgets say."""
    prefix, lake = "dev_ada_", Lake(filled)
    for schema in SCHEMAS:
        spark.sql(f"CREATE SCHEMA spark_catalog.{prefix}{schema}")
    for table in TABLES:
        if lake.exists(spark, table):
            spark.sql(
                f"CREATE TABLE spark_catalog.{prefix}{table} USING delta LOCATION '{find_table_folder(lake, table)}'"
            )
    yield {
        "catalog": "spark_catalog",
        "schema_prefix": prefix,
        "checkpoints": filled.checkpoint_path(""),
        "config": str(filled.home / "sessionlake.yml"),
    }
    for schema in SCHEMAS:
        spark.sql(f"DROP SCHEMA spark_catalog.{prefix}{schema} CASCADE")


class Workspace:
    """What a platform puts into a notebook."""

    def __init__(self, spark: Any, widgets: dict[str, str]) -> None:
        own = SimpleNamespace(text=widgets.setdefault, get=widgets.__getitem__)
        self.displayed: list[Any] = []
        self.given = {"spark": spark, "dbutils": SimpleNamespace(widgets=own), "display": self.displayed.append}

    @property
    def pictures(self) -> int:
        return sum(isinstance(one, Figure) for one in self.displayed)


@pytest.mark.soak
def test_on_a_platform_its_session_widgets_and_display_serve_a_notebook(spark, deployed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(spark, deployed)
    shown = runpy.run_path(EXPLORE, init_globals=workspace.given)
    assert type(shown["notebook"].reader) is SparkReader
    assert list(shown["metric"].axes[0].get_lines()[0].get_ydata()) == list(shown["points"]["value"])
    assert workspace.pictures > 0
    assert set(deployed) >= {"session", "row", "metric", "moment"}


@pytest.mark.soak  # each of them over a home and one over a catalog each time
def test_on_a_platform_every_notebook_shows_what_the_tables_in_its_catalog_hold(
    spark, filled, deployed, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    workspace = Workspace(spark, deployed)
    shown = run_all(workspace.given)
    assert {type(made["notebook"].reader) for made in shown.values()} == {SparkReader}
    require_true(spark, filled, shown)
    assert workspace.pictures == PICTURES
    assert set(deployed) >= {"session", "row", "metric", "moment", "topic", "quiet_ms"}


@pytest.mark.usefixtures("home")
def test_session_moment_and_metric_are_chosen_by_name(spark, filled, monkeypatch, capsys):
    least = Lake(filled).read(spark, "silver.sessions").orderBy("messages", "session_id").first()
    monkeypatch.setenv("NOTEBOOK_SESSION", least["session_id"])
    monkeypatch.setenv("NOTEBOOK_METRIC", "nothing")
    monkeypatch.setenv("NOTEBOOK_MOMENT", least["last_kafka_timestamp"].isoformat())
    shown = runpy.run_path(EXPLORE)
    assert shown["session"] == least["session_id"]
    assert list(shown["then"]["row_id"]) == [row["row_id"] for row in shown["rows"].collect()]
    assert "gold.rolling_average has no such points" in capsys.readouterr().out
    monkeypatch.setenv("NOTEBOOK_SESSION", "s-none")
    with pytest.raises(NotFoundError, match="there is no session 's-none'"):
        runpy.run_path(EXPLORE)


@pytest.mark.usefixtures("spark")
def test_an_empty_home_is_named_with_what_to_run(monkeypatch, tmp_path):
    monkeypatch.setenv("SESSIONLAKE_HOME", str(tmp_path / "empty"))
    for notebook in NOTEBOOKS:
        with pytest.raises(NotFoundError, match=r"empty has no table .*\. On a laptop, run `make demo`"):
            runpy.run_path(str(notebook))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_each_is_a_databricks_source_that_jupyter_opens_with_its_prose_as_text(notebook: Path, tmp_path):
    source = notebook.read_text(encoding="utf-8")
    first, *cells = source.split("\n# COMMAND ----------\n")
    assert first.startswith("# Databricks notebook source\n# MAGIC %md\n")
    for cell in cells:
        magic = [line.startswith("# MAGIC") for line in cell.strip().splitlines()]
        assert all(magic) or not any(magic)
    copy = tmp_path / notebook.name
    copy.write_text(source, encoding="utf-8")
    main([str(copy)])
    made = json.loads(copy.with_suffix(".ipynb").read_text(encoding="utf-8"))
    assert made == convert_to_jupyter(source)
    kinds = ["markdown" if "# MAGIC" in cell else "code" for cell in (first, *cells)]
    assert [cell["cell_type"] for cell in made["cells"]] == kinds
    code = "\n".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "code")
    compile(code, notebook.name, "exec")
    assert "MAGIC" not in str(made)
    assert made["cells"][0]["source"].startswith("# ")


def test_what_remote_status_asks_a_warehouse_is_answered_by_the_ledger(spark, filled):
    lake = Lake(filled)
    found = spark.sql(
        replace_table_and_function_names(LAST_HOUR, lambda one: lake.to_sql_identifier(str(one)))
    ).collect()
    assert {row["layer"]: row["batches"] for row in found} == {"bronze": 2, "silver": 1, "silver_tables": 1, "gold": 1}
    assert all(row["batch_seconds"] >= 0 for row in found)
