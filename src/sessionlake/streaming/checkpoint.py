"""A checkpoint's own log, looked at before Spark reads it: what Spark says of a damaged one names no file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sessionlake.delta.schemas.names import BRONZE, GOLD, SILVER, SILVER_TABLES
from sessionlake.errors import LAST_RESORT, LossError

# Spark goes back no further than the batch before the last one.
_LATEST = 2
_NO_OFFSET = "-"
_BOUNDARY = -1  # as the index of an offset of Delta's source
# The version, the metadata, and a line a source.
_PLANNED_LINES = 3
# What `sessionlake recover` does about a layer whose checkpoint, or whose tables, are lost.
RECOVERED = {
    BRONZE: "goes on behind what its table holds",
    SILVER: "makes it once more from bronze",
    GOLD: "has it computed anew from silver",
}


def way_on(layer: str) -> str:
    """What to do about a checkpoint that cannot be read or is not there: first whatever keeps all data."""
    named = SILVER if layer == SILVER_TABLES else layer
    if named in RECOVERED:
        return f"`sessionlake recover {named}` {RECOVERED[named]}; or put the checkpoint back from a backup"
    back = "Put the checkpoint back from a backup"
    if layer.startswith("processor-"):
        return f"{back}; or `sessionlake rebuild processor:{layer.removeprefix('processor-')}`, if bronze is whole"
    return f"{back}; `sessionlake doctor` says whether the tables are whole. {LAST_RESORT}"


def require_readable(checkpoint: str, layer: str, *, instead: str = "") -> None:
    """Returns if the checkpoint is new, or its metadata and latest log entries are whole.

    Args:
        instead: what can be done where there is no backup; by default, what its layer allows.

    Raises:
        LossError: naming the file that is not, and what to do.
    """
    folder = Path(checkpoint)
    for file in _entries(folder):
        why = _fault(file)
        if why is not None:
            remedy = f"Put the checkpoint back from a backup, or {instead}" if instead else way_on(layer)
            place = file.relative_to(folder)
            damaged = f"{layer}: the checkpoint {folder} is damaged: {place} {why}"
            raise LossError(damaged, fix=f"No table was changed. {remedy}")


def last_committed(checkpoint: str | Path) -> int | None:
    """The number of the last batch that its query has committed; None before the first.

    A batch is planned once the one before it is committed: Spark, too, goes by that where notes of commits are lost.
    """
    noted, following = _newest(Path(checkpoint) / "commits"), last_planned(checkpoint)
    known = max(-1 if noted is None else noted, -1 if following is None else following - 1)
    return None if known < 0 else known


def last_planned(checkpoint: str | Path) -> int | None:
    """The number of the last batch that its query has set out to do; None before the first."""
    return _newest(Path(checkpoint) / "offsets")


def planned(checkpoint: str | Path, batch: int) -> tuple[dict[str, Any], Any]:
    """What Spark noted of a batch before it began: its metadata, and where the stream's only source was to end.

    Raises:
        OSError: there is no such note.
        ValueError: it is not whole.
    """
    lines = (Path(checkpoint) / "offsets" / str(batch)).read_text(encoding="utf-8").split("\n")
    if len(lines) < _PLANNED_LINES:
        raise ValueError(f"{len(lines)} lines instead of {_PLANNED_LINES}")
    return json.loads(lines[1]), json.loads(lines[2])


@dataclass(frozen=True)
class TablePlace:
    """Where a batch of a stream of a Delta table ends, as Delta's source notes it.

    Attributes:
        table: Delta's id of it, which no table has that was there before it.
        version: the one that is read on in.
        index: of the last of its files that was read.
        at_first: whether the stream still reads what the table held when it began, in another order than the versions'.
    """

    table: str
    version: int
    index: int
    at_first: bool

    @property
    def before_version(self) -> bool:
        """Whether nothing of the version is read, and all before it."""
        return self.index == _BOUNDARY

    @property
    def latest(self) -> int:
        """The last version of which anything is read."""
        return self.version - self.before_version


def read_to(checkpoint: str | Path, batch: int) -> TablePlace:
    """Where a batch of a stream of a Delta table, by Spark's number, ends.

    Raises:
        OSError: nothing is noted of it.
        ValueError: it is not whole, or of another source.
    """
    _, noted = planned(checkpoint, batch)
    try:
        version, index = int(noted["reservoirVersion"]), int(noted["index"])
        return TablePlace(str(noted["reservoirId"]), version, index, bool(noted.get("isStartingVersion", False)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{Path(checkpoint) / 'offsets' / str(batch)} is none of a Delta table's: {error!r}") from None


def from_first_batch(checkpoint: str | Path) -> dict[str, int]:
    """A stream's options for Delta's source, where its first batch is the only one so far.

    Spark plans the last batch once more with each start, and does not run it if it is committed. For a first batch,
    Delta sorts all files of a snapshot for that, unless it is told to begin with the last version of the batch.
    """
    if last_planned(checkpoint) != 0 or last_committed(checkpoint) != 0:
        return {}
    with suppress(OSError, ValueError):
        place = read_to(checkpoint, 0)
        return {} if place.at_first else {"startingVersion": place.latest}
    return {}


def is_at_first(checkpoint: str | Path) -> bool:
    """Whether a stream of a Delta table has begun, and still reads what the table held then: in any order."""
    batch = last_committed(checkpoint)
    return batch is not None and read_to(checkpoint, batch).at_first


def write_whole(file: Path, content: bytes) -> None:
    """Writes a file that is there with all of its content, or not at all, though the power fails."""
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)


def _newest(log: Path) -> int | None:
    return max((int(file.name) for file in log.glob("*") if file.name.isdecimal()), default=None)


def _entries(folder: Path) -> Iterator[Path]:
    if (folder / "metadata").is_file():
        yield folder / "metadata"
    for log in ("offsets", "commits"):
        batches = (file for file in folder.glob(f"{log}/*") if file.name.isdecimal())
        yield from sorted(batches, key=lambda file: int(file.name))[-_LATEST:]


def _fault(file: Path) -> str | None:
    """What is wrong with a file of JSON lines, which in a log follow a line with the format's version."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return f"cannot be read ({error})"
    if file.name != "metadata":
        if not lines or not lines[0].startswith("v"):
            return "does not begin with a version"
        lines = lines[1:]
    if not lines:
        return "is empty"
    try:
        for line in lines:
            if line != _NO_OFFSET:
                json.loads(line)
    except ValueError:
        return "is not whole JSON"
    return None
