"""Changes checkpoints as a killed process or a failed disk would leave them."""

from __future__ import annotations

from pathlib import Path

from sessionlake.streaming.checkpoint import read_last_committed_batch


def lose_last_commit(checkpoint: str | Path) -> None:
    """Removes the commit file of a checkpoint's last batch, as if the process died after committing the tables."""
    last = read_last_committed_batch(checkpoint)
    if last is not None:
        note = Path(checkpoint, "commits", str(last))
        note.unlink(missing_ok=True)  # it may be missing already
        note.with_name(f".{last}.crc").unlink(missing_ok=True)
