"""Checkpoints as a death, or a disk, leaves them."""

from __future__ import annotations

from pathlib import Path

from sessionlake.streaming.checkpoint import last_committed


def lose_last_commit(checkpoint: str | Path) -> None:
    """Takes a checkpoint back to its last batch, if it has one, as if that had committed its tables and died."""
    last = last_committed(checkpoint)
    if last is not None:
        note = Path(checkpoint, "commits", str(last))
        note.unlink(missing_ok=True)  # it may be lost already
        note.with_name(f".{last}.crc").unlink(missing_ok=True)
