"""A checkpoint's own log, looked at before Spark reads it: what Spark says of a damaged one names no file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sessionlake.errors import LAST_RESORT, LossError
from sessionlake.lake.names import BRONZE, GOLD, SILVER, SILVER_TABLES

# Spark goes back no further than the batch before the last one.
_LATEST = 2
_NO_OFFSET = "-"
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
        return f"{back}, or start the processor over under another name"
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
            raise LossError(damaged, f"No table was changed. {remedy}")


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
