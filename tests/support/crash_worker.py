"""A process to kill: bronze, silver and its merges, each once over what there is.

Usage: python crash_worker.py CONFIG
"""

from __future__ import annotations

import sys
from pathlib import Path

from sessionlake.bronze import job as bronze
from sessionlake.config import load_settings
from sessionlake.runtime.spark import spark_session
from sessionlake.silver import job as silver
from sessionlake.silver.merge.merger import TableMerger
from support.sessions import without_generated_code


def main(file: Path) -> None:
    """Runs the layers one after the other; a fault point may end this at any commit."""
    settings = load_settings(file)
    spark = without_generated_code(spark_session(settings, app="crash-worker"))
    bronze.start(spark, settings, once=True).wait()
    silver.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).catch_up()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
