"""Delta's table properties that are set or read here, and how their values are written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from sessionlake.protocol.names import quote

CHECKPOINTS = "delta.checkpointInterval"
"""After how many versions the log is put together, which readers begin at."""
CHECKPOINT_INTERVAL = 50
RETENTION = "delta.deletedFileRetentionDuration"
"""How long the log remembers files that are no part of the table any more. Each is in every checkpoint until then."""
LOG_CLEANUP = "delta.enableExpiredLogCleanup"
"""Whether Delta removes log entries by their age, whoever has yet to read them."""
STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"
"""Names of the columns that files have the least and the greatest value of."""
APPEND_ONLY = "delta.appendOnly"
"""Whether Delta refuses commits that remove rows; what retention has removed rows of has it no more."""
DELETION_VECTORS = "delta.enableDeletionVectors"
"""Whether what MERGE replaces is marked, and its file left as it is."""
CHANGE_FEED = "delta.enableChangeDataFeed"
"""Whether commits tell which rows they change."""
_LISTED = re.compile(r"`[^`]*`|[^,]+")


def join_names(names: Iterable[str]) -> str:
    """Names of columns as Delta's properties have them."""
    return ",".join(name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else quote(name) for name in names)


def split_names(told: str) -> tuple[str, ...]:
    """What `join_names` wrote."""
    return tuple(name.strip("`") for name in _LISTED.findall(told))


def interval_text(span: timedelta) -> str:
    """A duration as Delta's properties have it."""
    return f"interval {int(span.total_seconds())} seconds"


def parse_interval(told: str | None) -> timedelta:
    """What a property says that `interval_text` wrote; zero for anything else."""
    found = re.fullmatch(r"interval (\d+) seconds", told or "")
    return timedelta(seconds=int(found[1])) if found else timedelta(0)
