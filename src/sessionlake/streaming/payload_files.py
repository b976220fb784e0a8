"""How rows that a fold emits pass through Spark: compressed, or in files that the driver and Spark's tasks share.

Spark copies every byte that passes through it about ten times and keeps it in memory until the batch is done. So if the
reader can open the writer's files, large rows go into a file and only its name passes through Spark. The rows are then
neither compressed nor copied: the reader maps the file into memory. The files are removed after their batch.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sessionlake.protocol.chunk import (
    COMPRESS_ABOVE_BYTES,
    COMPRESSED_MAGIC,
    compress_if_large,
    decode_ipc,
    encode_compressed_ipc,
)
from sessionlake.protocol.types import Payloads

Emissions = Sequence[tuple[str, bytes | pa.Table]]
"""What a fold emits: pairs of a kind and its content, which is bytes or rows."""
_FILED = b"file:"
# Payloads with one of these prefixes contain large rows, either compressed or in a file.
LARGE_PREFIXES = (COMPRESSED_MAGIC, _FILED)


@dataclass(frozen=True)
class PayloadFiles:
    """The files for the large rows of a query's current batch.

    Attributes:
        folder: A folder that driver and tasks share and only this query writes to. None: rows are compressed instead.
        min_bytes: Rows that take more bytes than this go into a file.
    """

    folder: Path | None
    min_bytes: int = COMPRESS_ABOVE_BYTES

    @classmethod
    def create_for_query(cls, scratch: Path | None, query: str) -> PayloadFiles:
        """Returns the files of one query.

        Args:
            scratch: The folder that contains the folders of all queries; None if driver and tasks share no folder.
            query: The name of the query.
        """
        return cls(None if scratch is None else scratch / query)

    def write_rows(self, rows: pa.Table) -> bytes:
        """Returns the payload for rows: the compressed rows, or the name of a new file that contains the rows."""
        if self.folder is None or rows.nbytes <= self.min_bytes:
            return encode_compressed_ipc(rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{uuid.uuid4()}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return _FILED + str(path).encode()

    def remove_files(self) -> None:
        """Removes the files of the last batch."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


NO_FILES = PayloadFiles(None)
"""No files: all rows are compressed."""


def encode_payloads(emitted: Emissions, files: PayloadFiles = NO_FILES) -> Payloads:
    """Returns the payloads to pass through Spark for the rows and bytes that a fold emitted."""
    return [
        (kind, compress_if_large(content) if isinstance(content, bytes) else files.write_rows(content))
        for kind, content in emitted
    ]


def read_payload(payload: bytes | pa.Buffer) -> pa.Table:
    """Returns the rows in a payload, or in the file that it names. Dictionary-encoded texts stay encoded."""
    seen = memoryview(payload)
    if seen[: len(_FILED)] != _FILED:
        return decode_ipc(payload)
    return pa.ipc.open_stream(pa.memory_map(bytes(seen[len(_FILED) :]).decode())).read_all()


def unpack_payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A `mapInArrow` function: takes batches with a column `payload binary` and yields the rows in the payloads."""
    for batch in batches:
        for payload in batch.column("payload"):
            yield from read_payload(payload.as_buffer()).to_batches()
