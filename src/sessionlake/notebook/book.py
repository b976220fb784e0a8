"""What a notebook stands on: tables, parameters, and how to show things, on a platform, in Jupyter or plain."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import ConfigError, NotThereError
from sessionlake.settings.file import TARGET_VARIABLE, TARGETS, read_document, read_settings
from sessionlake.settings.model import CONFIG_VARIABLE, SchemaSettings, Settings, load_settings, settings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, SparkSession

_VARIABLE = "NOTEBOOK_"


class Book:
    """One run of a notebook.

    On Databricks, `spark`, `dbutils` and `display` are in its namespace, and widgets choose `config` (the deployed
    settings file), `target` (its section), `catalog`, `schema_prefix` (`dev_<user>_` in a development target) and
    `checkpoints`. Elsewhere the home of `SESSIONLAKE_HOME` is read, and pictures are shown by Jupyter, or else saved in
    the home.

    Args:
        namespace: the notebook's `globals()`.

    Attributes:
        settings: where the lake is, and how it captures.
        spark: the platform's session, or one made for the home.
        reader: brings rows to the driver.
    """

    settings: Settings
    spark: SparkSession
    reader: TableReader

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._dbutils = namespace.get("dbutils")
        self._display: Callable[[Any], None] | None = namespace.get("display", getattr(builtins, "display", None))
        if "spark" in namespace:
            self.spark, self.settings = namespace["spark"], self._deployed()
        else:
            from sessionlake.spark.session import spark_session

            self.settings = load_settings()
            self.spark = spark_session(self.settings, app="notebook")
        self._lake = Lake(self.settings)
        self.reader = self._lake.reader(self.spark)

    def parameter(self, name: str, default: str = "") -> str:
        """A widget's value on Databricks, else that of the environment variable `NOTEBOOK_<NAME>`; or the default."""
        if self._dbutils is None:
            return os.environ.get(f"{_VARIABLE}{name.upper()}") or default
        self._dbutils.widgets.text(name, "")
        return str(self._dbutils.widgets.get(name)) or default

    def require(self, *tables: str) -> None:
        """Returns if these tables are there.

        Raises:
            NotThereError: one is not, with what fills it.
        """
        if missing := [table for table in tables if not self._lake.exists(self.spark, table)]:
            raise NotThereError(
                f"{self.settings.place} has no {', '.join(missing)}: run `make demo`, or name another home with "
                "SESSIONLAKE_HOME; on Databricks, choose catalog and schema_prefix above, and run the jobs"
            )

    def table(self, name: str) -> DataFrame:
        """A table by its two-level name, wherever the lake is."""
        return self._lake.read(self.spark, name)

    def show(self, rows: Any, most: int = 50) -> None:
        """The first rows of a frame, Spark's or pandas', as the platform's or Jupyter's table, or as text."""
        frame = rows.limit(most).toPandas() if hasattr(rows, "toPandas") else rows.head(most)
        if self._display is not None:
            import pandas as pd

            with pd.option_context("display.html.use_mathjax", False):
                self._display(frame)
        else:
            print(frame.to_string(index=False), "\n")  # noqa: T201 - a notebook's output

    def picture(self, figure: Figure, name: str) -> None:
        """A figure where it is seen: in the notebook, or as a file of the home, which is named."""
        if self._display is not None:
            self._display(figure)
            return
        path = self.settings.home / "notebooks" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
        print(f"picture: {path}\n")  # noqa: T201 - a notebook's output

    def _deployed(self) -> Settings:
        """The settings of a deployment, by the widgets; what is secret in them is left out: nothing here needs it.

        Raises:
            ConfigError: the widgets do not say which file, or which of its targets.
        """
        config = self.parameter("config", os.environ.get(CONFIG_VARIABLE, ""))
        target = self.parameter("target", os.environ.get(TARGET_VARIABLE, ""))
        given = {name: self.parameter(name) for name in ("catalog", "schema_prefix", "checkpoints")}
        if not config:
            raise ConfigError("the widget config is empty: it has the path of the deployed sessionlake.yml")
        document = read_document(Path(config))
        if (targets := document.content.get(TARGETS)) and target not in targets:
            raise ConfigError(f"the widget target has {target!r}: {config} has {', '.join(targets)}")
        settings = settings_of(read_settings(document, target))
        catalog = given["catalog"] or settings.catalog or "main"
        schemas = {
            schema: f"{given['schema_prefix']}{settings.schemas.name_of(schema)}"
            for schema in SchemaSettings.model_fields
        }
        checkpoints = given["checkpoints"] or f"/Volumes/{catalog}/{schemas['ops']}/checkpoints"
        return settings.model_copy(
            update={"catalog": catalog, "schemas": SchemaSettings(**schemas), "checkpoints": checkpoints}
        )
