"""What Spark's Kafka source subscribes to, and from where on: changed while the query does not run.

Spark fixes both when a query starts, and keeps every topic-partition that it ever read in its checkpoint: one that the
subscription lost stops the query, one that it gained is read from its beginning. So the checkpoint's last entry is
brought to where `ops.topics` and the ledger say that the query must go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sessionlake.bronze.offsets import Offsets, read_offsets

_INITIAL = Path("sources", "0", "0")
_COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


def pattern(topics: str, excluded: Iterable[str]) -> str:
    """A Java regular expression for whole names that match `topics`, without those excluded."""
    names = "|".join(re.escape(name) for name in sorted(excluded))
    return f"^(?!(?:{names})$)(?:{topics})$" if names else f"^(?:{topics})$"


class QueryOffsets:
    """The offsets log of a query that does not run."""

    def __init__(self, checkpoint: str) -> None:
        self._folder = Path(checkpoint)

    @property
    def begun(self) -> bool:
        """Whether the query has ever looked at Kafka."""
        return (self._folder / _INITIAL).is_file()

    @property
    def pending(self) -> int | None:
        """The batch that was planned and may be half done, if there is one."""
        planned, done = self._newest("offsets"), self._newest("commits")
        return planned if planned is not None and planned != done else None

    @property
    def newest(self) -> int | None:
        """The batch that was planned last."""
        return self._newest("offsets")

    def start(self) -> Offsets:
        """Where the next batch to be done goes on, pending or not."""
        return read_offsets(self._start_file())

    def end(self) -> Offsets:
        """Where the pending batch ends."""
        return read_offsets(self._folder / "offsets" / str(self.pending))

    def conclude(self, *, done: bool) -> None:
        """Marks the pending batch as done, or gives up its plan."""
        batch = str(self.pending)
        if done:
            _write(self._folder / "commits" / batch, _COMMITTED.encode())
        else:
            _remove(self._folder / "offsets" / batch)

    def go_on_from(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Makes these the offsets that the next batch starts from; no batch may be pending."""
        topics: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            topics.setdefault(topic, {})[str(partition)] = offset
        said = json.dumps(topics, separators=(",", ":")).encode()
        # The initial offsets answer for partitions that the log lacks: they must not speak of another generation.
        for file in {self._start_file(), self._folder / _INITIAL}:
            head, _, _ = file.read_bytes().rstrip(b"\n").rpartition(b"\n")
            _write(file, head + b"\n" + said)

    def _start_file(self) -> Path:
        done = self._newest("commits")
        return self._folder / (_INITIAL if done is None else Path("offsets", str(done)))

    def _newest(self, log: str) -> int | None:
        return max((int(file.name) for file in self._folder.glob(f"{log}/*") if file.name.isdecimal()), default=None)


def _write(file: Path, content: bytes) -> None:
    """In one step, and without the checksum of what was there before."""
    fresh = file.with_name(f".{file.name}.fresh")
    fresh.write_bytes(content)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    fresh.replace(file)


def _remove(file: Path) -> None:
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
