"""Access to tables, parameters and output from a notebook on Databricks, in Jupyter, or run as a plain script."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import ConfigError, NotFoundError
from sessionlake.settings.file import TARGET_VARIABLE, TARGETS, read_document, read_settings
from sessionlake.settings.model import (
    CONFIG_VARIABLE,
    DEFAULT_HOME,
    ENV_PREFIX,
    SchemaSettings,
    Settings,
    load_settings,
    validate_settings,
)
from sessionlake.silver.merge.feed_views import create_feed_views, list_feed_view_sources

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, SparkSession

_VARIABLE = "NOTEBOOK_"


class NotebookContext:
    """Gives one run of a notebook access to the lake's tables, to parameters and to output.

    On Databricks, the notebook's namespace has `spark`, `dbutils` and `display`. Widgets set `config` (path of the
    deployed settings file), `target` (section of that file), `catalog`, `schema_prefix` (`dev_<user>_` in a development
    target) and `checkpoints`. Elsewhere the notebook reads the home named by `SESSIONLAKE_HOME`. A relative one begins
    at the working folder or at the nearest folder above it, because Jupyter works in the notebook's folder. Jupyter
    shows pictures in the notebook, and a plain script saves them in the home.

    Args:
        namespace: The notebook's `globals()`.

    Attributes:
        settings: Settings of the lake.
        spark: The platform's Spark session, or a new local one.
        reader: Reads rows of tables into this process.
    """

    settings: Settings
    spark: SparkSession
    reader: TableReader

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._dbutils = namespace.get("dbutils")
        self._display: Callable[[Any], None] | None = namespace.get("display", getattr(builtins, "display", None))
        if "spark" in namespace:
            self.spark, self.settings = namespace["spark"], self._read_deployment_settings()
        else:
            from sessionlake.spark.session import get_or_start_spark_session

            self.settings = load_settings_of_notebook()
            self.spark = get_or_start_spark_session(self.settings, app="notebook")
        self._lake = Lake(self.settings)
        self.reader = self._lake.reader(self.spark)

    def read_parameter(self, name: str, default: str = "") -> str:
        """Returns a parameter: on Databricks a widget's value, elsewhere the environment variable `NOTEBOOK_<NAME>`.

        An empty value gives the default.
        """
        if self._dbutils is None:
            return os.environ.get(f"{_VARIABLE}{name.upper()}") or default
        self._dbutils.widgets.text(name, "")
        return str(self._dbutils.widgets.get(name)) or default

    def require_tables(self, *tables: str) -> None:
        """Checks that the tables exist.

        Raises:
            NotFoundError: A table is missing. The text says how to create it.
        """
        sources = list_feed_view_sources(self.settings.capture)
        if missing := [table for table in tables if not self._lake.exists(self.spark, sources.get(table, table))]:
            raise NotFoundError(
                f"{self.settings.location} has no table {', '.join(missing)}",
                fix="On a laptop, run `make demo`, or name another home with SESSIONLAKE_HOME. On Databricks, set the "
                "widgets catalog and schema_prefix, and run the jobs that fill the tables",
            )

    def read_table(self, name: str) -> DataFrame:
        """Returns a table or a feed's view as a Spark frame, by its two-level name such as `silver.session_rows`."""
        if name not in self.settings.capture.feed_views:
            return self._lake.read(self.spark, name)
        if not self._lake.storage.functions_persist:
            create_feed_views(self.spark, self._lake, [name])
        return self.spark.table(self._lake.storage.create_view_schema_and_get_name(self.spark, name))

    def show_rows(self, rows: Any, most: int = 50) -> None:
        """Shows up to `most` rows of a Spark or pandas frame, as a table in the notebook or as printed text."""
        frame = rows.limit(most).toPandas() if hasattr(rows, "toPandas") else rows.head(most)
        if self._display is not None:
            import pandas as pd

            with pd.option_context("display.html.use_mathjax", False):
                self._display(frame)
        else:
            print(frame.to_string(index=False), "\n")  # noqa: T201 - a notebook's output

    def show_figure(self, figure: Figure, name: str) -> None:
        """Shows a figure in the notebook, or saves it as `<home>/notebooks/<name>.png` and prints the path."""
        if self._display is not None:
            self._display(figure)
            return
        path = self.settings.home / "notebooks" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
        print(f"picture: {path}\n")  # noqa: T201 - a notebook's output

    def _read_deployment_settings(self) -> Settings:
        """Returns the settings of the Databricks deployment that the notebook's widgets name, without secrets.

        Raises:
            ConfigError: The widgets name no settings file, or no section of it.
        """
        config = self.read_parameter("config", os.environ.get(CONFIG_VARIABLE, ""))
        target = self.read_parameter("target", os.environ.get(TARGET_VARIABLE, ""))
        given = {name: self.read_parameter(name) for name in ("catalog", "schema_prefix", "checkpoints")}
        if not config:
            raise ConfigError(
                "the notebook's widget `config` is empty, so it is not known which settings to use",
                fix="Set the widget to the path of the deployed sessionlake.yml, and run the notebook again",
            )
        document = read_document(Path(config))
        if (targets := document.content.get(TARGETS)) and target not in targets:
            raise ConfigError(
                f"the notebook's widget `target` is {target!r}, but {config} has the targets {', '.join(targets)}",
                fix="Set the widget to one of these targets",
            )
        settings = validate_settings(read_settings(document, target))
        catalog = given["catalog"] or settings.catalog or "main"
        schemas = {
            schema: f"{given['schema_prefix']}{settings.schemas.get_configured_name(schema)}"
            for schema in SchemaSettings.model_fields
        }
        checkpoints = given["checkpoints"] or f"/Volumes/{catalog}/{schemas['ops']}/checkpoints"
        return settings.model_copy(
            update={"catalog": catalog, "schemas": SchemaSettings(**schemas), "checkpoints": checkpoints}
        )


def load_settings_of_notebook() -> Settings:
    """Returns the settings of the home that `SESSIONLAKE_HOME` names, or of `.sessionlake`.

    A relative home and the settings file are looked for in the working folder, then in the folders above it: Jupyter
    works in the notebook's folder, and not in the one in which it was started.

    Raises:
        ConfigError: A setting is wrong.
    """
    home, here = Path(os.environ.get(f"{ENV_PREFIX}HOME") or DEFAULT_HOME).expanduser(), Path.cwd()
    folder = next((folder for folder in (here, *here.parents) if (folder / home).is_dir()), here)
    with chdir(folder):
        return load_settings()
