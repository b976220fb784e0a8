"""Removes old rows of a table, in a separate process that a fault point can kill.

    python -m support.cut_retention HOME TABLE

The rows' ages are those of `support.retention.Aging`. The clock for retention is two spans ahead.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from sessionlake.operations.retention.removal import RetentionRunner
from sessionlake.spark.session import get_or_start_spark_session, stop_spark
from support.retention import SPAN, aging_settings


def main(home: str, table: str) -> None:
    settings = aging_settings({"home": Path(home)})
    found = RetentionRunner(get_or_start_spark_session(settings), settings).remove_expired_rows(
        table, datetime.now(UTC) + SPAN
    )
    sys.stdout.write(f"{found.rows} {found.waits}\n")
    stop_spark()


if __name__ == "__main__":
    main(*sys.argv[1:])
