"""Names of the Delta table properties that sessionlake uses, and functions that format and parse their values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from sessionlake.protocol.names import quote

CHECKPOINTS = "delta.checkpointInterval"
"""Number of versions after which a checkpoint of the log is written. Readers start at the latest checkpoint."""
CHECKPOINT_INTERVAL = 50
RETENTION = "delta.deletedFileRetentionDuration"
"""How long removed files stay on the disk, and in the log's checkpoints, before VACUUM may delete them."""
LOG_CLEANUP = "delta.enableExpiredLogCleanup"
"""If "true", Delta removes old log entries by their age alone, even if a stream has not read them."""
STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"
"""Names of the columns whose minimum and maximum Delta stores for each file."""
APPEND_ONLY = "delta.appendOnly"
"""If "true", Delta refuses commits that remove rows. Set to "false" when retention removes rows for the first time."""
DELETION_VECTORS = "delta.enableDeletionVectors"
"""If "true", MERGE marks replaced rows in deletion vectors, and does not rewrite their files."""
CHANGE_FEED = "delta.enableChangeDataFeed"
"""If "true", commits record which rows they change, for readers of the change data feed."""
_LISTED = re.compile(r"`[^`]*`|[^,]+")


def encode_column_list(names: Iterable[str]) -> str:
    """Returns column names as the value of a Delta property: quoted where needed, and joined with commas."""
    return ",".join(name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else quote(name) for name in names)


def decode_column_list(value: str) -> tuple[str, ...]:
    """Returns the column names in a property value written by `encode_column_list`; none if the value is empty."""
    return tuple(name.strip("`") for name in _LISTED.findall(value))


def format_interval(span: timedelta) -> str:
    """Returns a duration as the value of a Delta property, as in `interval 3600 seconds`."""
    return f"interval {int(span.total_seconds())} seconds"


def parse_interval(value: str | None) -> timedelta:
    """Returns the duration in a property value written by `format_interval`; zero for any other text and for None."""
    found = re.fullmatch(r"interval (\d+) seconds", value or "")
    return timedelta(seconds=int(found[1])) if found else timedelta(0)
