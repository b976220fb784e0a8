"""Delta's table properties that are set or read here, and the format of their values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from sessionlake.protocol.names import quote

CHECKPOINTS = "delta.checkpointInterval"
"""After how many versions a checkpoint of the log is written. Readers start at the latest checkpoint."""
CHECKPOINT_INTERVAL = 50
RETENTION = "delta.deletedFileRetentionDuration"
"""How long the log remembers removed files. Each checkpoint lists them until then."""
LOG_CLEANUP = "delta.enableExpiredLogCleanup"
"""Whether Delta removes log entries by their age, even if a stream has not read them."""
STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"
"""Names of the columns for which files keep minimum and maximum."""
APPEND_ONLY = "delta.appendOnly"
"""Whether Delta refuses commits that remove rows. Set to false once retention has removed rows."""
DELETION_VECTORS = "delta.enableDeletionVectors"
"""Whether MERGE marks replaced rows and leaves their files as they are."""
CHANGE_FEED = "delta.enableChangeDataFeed"
"""Whether commits record which rows they change."""
_LISTED = re.compile(r"`[^`]*`|[^,]+")


def join_names(names: Iterable[str]) -> str:
    """Returns column names as a Delta property lists them."""
    return ",".join(name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else quote(name) for name in names)


def split_names(value: str) -> tuple[str, ...]:
    """Returns the names in a property that `join_names` wrote."""
    return tuple(name.strip("`") for name in _LISTED.findall(value))


def interval_text(span: timedelta) -> str:
    """Returns a duration as Delta's properties write it."""
    return f"interval {int(span.total_seconds())} seconds"


def parse_interval(value: str | None) -> timedelta:
    """Returns the duration in a property that `interval_text` wrote; zero for any other text or None."""
    found = re.fullmatch(r"interval (\d+) seconds", value or "")
    return timedelta(seconds=int(found[1])) if found else timedelta(0)
