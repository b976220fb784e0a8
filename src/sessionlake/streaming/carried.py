"""How rows that a fold emits get past Spark: compressed, or in files where the driver and its tasks share a disk.

Spark copies each byte that goes through it some ten times, and keeps it in memory until the batch is done. So of large
rows only a file's name goes through it, if whoever reads them can open the file: neither is anything compressed then,
nor copied, for a file is read where the system has it. Such files last no longer than their batch.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sessionlake.protocol.chunk import COMPRESS_ABOVE_BYTES, COMPRESSED, compress, read_ipc, write_compressed
from sessionlake.protocol.types import Payloads

Emissions = Sequence[tuple[str, bytes | pa.Table]]
"""What a fold emits: pairs of a kind and its content, bytes or rows."""
_FILED = b"file:"
# By what the payloads begin with that are large, or were.
LARGE_PREFIXES = (COMPRESSED, _FILED)


@dataclass(frozen=True)
class Files:
    """Where the large rows of a query's batch go, of which one is under way at a time.

    Attributes:
        folder: which driver and tasks see alike, and nobody else writes to; None: rows are compressed instead.
        least: rows of more bytes are large.
    """

    folder: Path | None
    least: int = COMPRESS_ABOVE_BYTES

    @classmethod
    def of(cls, scratch: Path | None, query: str) -> Files:
        """Those of one query.

        Args:
            scratch: where those of all are; None: there is no such place.
        """
        return cls(None if scratch is None else scratch / query)

    def put(self, rows: pa.Table) -> bytes:
        """What to send in the place of rows."""
        if self.folder is None or rows.nbytes <= self.least:
            return write_compressed(rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{uuid.uuid4()}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return _FILED + str(path).encode()

    def clear(self) -> None:
        """Removes what the last batch has left."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


NO_FILES = Files(None)


def sent(emitted: Emissions, files: Files = NO_FILES) -> Payloads:
    """What is handed to Spark in the place of what was emitted."""
    return [
        (kind, compress(content) if isinstance(content, bytes) else files.put(content)) for kind, content in emitted
    ]


def rows_in(payload: bytes | pa.Buffer) -> pa.Table:
    """The rows of a payload, wherever it has them; texts that were emitted as dictionaries stay so."""
    seen = memoryview(payload)
    if seen[: len(_FILED)] != _FILED:
        return read_ipc(payload)
    return pa.ipc.open_stream(pa.memory_map(bytes(seen[len(_FILED) :]).decode())).read_all()


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`payload binary` to the rows in the payloads; see `spark.frames.Mapped`."""
    for batch in batches:
        for payload in batch.column("payload"):
            yield from rows_in(payload.as_buffer()).to_batches()
