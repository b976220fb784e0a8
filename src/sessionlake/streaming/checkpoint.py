"""Reads the log that Spark keeps in a checkpoint, and checks the checkpoint's files before Spark reads them.

Spark's own error about a damaged checkpoint names no file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sessionlake.delta.schemas.names import BRONZE, GOLD, SILVER, SILVER_TABLES
from sessionlake.errors import LAST_RESORT, DataLossError

# Spark never reads log entries older than the one before the last batch.
_LATEST = 2
_NO_OFFSET = "-"
_BOUNDARY = -1  # file index in an offset of Delta's source: no file of the version was read yet
# The format version, the metadata, and one line per source.
_PLANNED_LINES = 3
# What `sessionlake recover LAYER` does for a layer that has lost its checkpoint or its tables.
RECOVERED = {
    BRONZE: "resumes after the messages that its table holds",
    SILVER: "builds it again from bronze",
    GOLD: "computes it again from silver",
}


def build_checkpoint_recovery_hint(layer: str) -> str:
    """Returns what the operator can do about a layer whose checkpoint is lost or cannot be read, as text.

    The first advice keeps all data.
    """
    named = SILVER if layer == SILVER_TABLES else layer
    if named in RECOVERED:
        return f"Run `sessionlake recover {named}`, which {RECOVERED[named]}; or restore the checkpoint from a backup"
    restore = "Restore the checkpoint from a backup"
    if layer.startswith("processor-"):
        rebuild = f"`sessionlake rebuild processor:{layer.removeprefix('processor-')}`"
        return f"{restore}; or run {rebuild}, if bronze is complete"
    return f"{restore}; `sessionlake doctor` says whether the tables are intact. {LAST_RESORT}"


def require_readable_checkpoint(checkpoint: str, layer: str, *, other_fix: str = "") -> None:
    """Checks that the checkpoint is new, or that its metadata and latest log entries are intact.

    Args:
        checkpoint: The folder of the checkpoint.
        layer: The layer's name, for the error's text.
        other_fix: What the operator can do without a backup, for the error's text. Empty gives the usual advice.

    Raises:
        DataLossError: A file of the checkpoint is damaged. The error names it and says what to do.
    """
    folder = Path(checkpoint)
    for file in _list_log_entries(folder):
        why = _describe_fault_of_file(file)
        if why is not None:
            hint = (
                f"Restore the checkpoint from a backup, or {other_fix}"
                if other_fix
                else build_checkpoint_recovery_hint(layer)
            )
            place = file.relative_to(folder)
            raise DataLossError(
                f"{layer}: the checkpoint {folder} is damaged: {place} {why}",
                why="No table was changed",
                fix=hint,
            )


def read_last_committed_batch(checkpoint: str | Path) -> int | None:
    """Returns Spark's number of the last batch that the query has committed; None if it has committed none.

    Spark plans a batch only after the previous one is committed. So if batch n is planned, batch n - 1 counts as
    committed, even if the log entry of its commit is lost.
    """
    noted, following = _find_highest_batch_number(Path(checkpoint) / "commits"), read_last_planned_batch(checkpoint)
    known = max(-1 if noted is None else noted, -1 if following is None else following - 1)
    return None if known < 0 else known


def read_last_planned_batch(checkpoint: str | Path) -> int | None:
    """Returns Spark's number of the last batch that the query has planned; None if it has planned none."""
    return _find_highest_batch_number(Path(checkpoint) / "offsets")


def read_metadata_and_offset_of_planned_batch(checkpoint: str | Path, batch: int) -> tuple[dict[str, Any], Any]:
    """Returns what Spark's log says about a planned batch: the metadata, and the end offset of the only source.

    Both are parsed JSON. The metadata has the batch's watermark, time and settings.

    Args:
        checkpoint: The folder of the checkpoint.
        batch: Spark's number of the batch.

    Raises:
        OSError: There is no log entry for the batch.
        ValueError: The entry is incomplete.
    """
    lines = (Path(checkpoint) / "offsets" / str(batch)).read_text(encoding="utf-8").split("\n")
    if len(lines) < _PLANNED_LINES:
        raise ValueError(f"{len(lines)} lines instead of {_PLANNED_LINES}")
    return json.loads(lines[1]), json.loads(lines[2])


@dataclass(frozen=True)
class DeltaOffset:
    """An offset of Delta's streaming source: the point in a table's history up to which a stream has read it.

    Attributes:
        table: Delta's id of the table. A table created later under the same name has another id.
        version: The version of the table that the stream is reading, or reads next.
        index: Index of the last file read in that version; -1 if none was read.
        in_initial_snapshot: True if the stream still reads the rows that the table had when the stream started. These
            files are not read in order of their versions.
    """

    table: str
    version: int
    index: int
    in_initial_snapshot: bool

    @property
    def is_at_version_start(self) -> bool:
        """True if the stream has read everything before `version` and nothing of `version` itself."""
        return self.index == _BOUNDARY

    @property
    def last_read_version(self) -> int:
        """The last version of the table that the stream has read completely or in part."""
        return self.version - self.is_at_version_start


def read_delta_offset(checkpoint: str | Path, batch: int) -> DeltaOffset:
    """Returns the point in a Delta table's history up to which a stream has read after a batch.

    Args:
        checkpoint: The folder of the stream's checkpoint.
        batch: Spark's number of the batch.

    Raises:
        OSError: There is no log entry for the batch.
        ValueError: The entry is incomplete or belongs to another kind of source.
    """
    _, noted = read_metadata_and_offset_of_planned_batch(checkpoint, batch)
    try:
        version, index = int(noted["reservoirVersion"]), int(noted["index"])
        return DeltaOffset(str(noted["reservoirId"]), version, index, bool(noted.get("isStartingVersion", False)))
    except (KeyError, TypeError, AttributeError) as error:
        entry = Path(checkpoint) / "offsets" / str(batch)
        raise ValueError(f"{entry} is not an offset of a Delta table: {error!r}") from None


def choose_restart_options(checkpoint: str | Path) -> dict[str, int]:
    """Returns options for Delta's source that make a restart after the query's first batch cheap; otherwise `{}`.

    At every start, Spark plans the last batch again, even if it is committed and does not run. If that is the first
    batch, Delta sorts all files of the table, unless `startingVersion` names the last version that the batch read.
    """
    if read_last_planned_batch(checkpoint) != 0 or read_last_committed_batch(checkpoint) != 0:
        return {}
    with suppress(OSError, ValueError):
        place = read_delta_offset(checkpoint, 0)
        return {} if place.in_initial_snapshot else {"startingVersion": place.last_read_version}
    return {}


def is_reading_initial_snapshot(checkpoint: str | Path) -> bool:
    """Returns True if a stream has started and has not yet read all rows that its Delta table had at that time."""
    batch = read_last_committed_batch(checkpoint)
    return batch is not None and read_delta_offset(checkpoint, batch).in_initial_snapshot


def write_atomically(file: Path, content: bytes) -> None:
    """Writes a file atomically: after a crash or power failure, it has all of this content or is unchanged."""
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the rename survive a power failure
    finally:
        os.close(folder)


def _find_highest_batch_number(log: Path) -> int | None:
    return max((int(file.name) for file in log.glob("*") if file.name.isdecimal()), default=None)


def _list_log_entries(folder: Path) -> Iterator[Path]:
    if (folder / "metadata").is_file():
        yield folder / "metadata"
    for log in ("offsets", "commits"):
        batches = (file for file in folder.glob(f"{log}/*") if file.name.isdecimal())
        yield from sorted(batches, key=lambda file: int(file.name))[-_LATEST:]


def _describe_fault_of_file(file: Path) -> str | None:
    """Returns what is wrong with a file of JSON lines in a checkpoint, as text; None if it is intact.

    Every file but `metadata` must also start with a line that has its format version.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return f"cannot be read ({error})"
    if file.name != "metadata":
        if not lines or not lines[0].startswith("v"):
            return "does not start with a version"
        lines = lines[1:]
    if not lines:
        return "is empty"
    try:
        for line in lines:
            if line != _NO_OFFSET:
                json.loads(line)
    except ValueError:
        return "is not complete JSON"
    return None
