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
    """Where large rows of a query's current batch are stored while the batch passes through Spark.

    Attributes:
        folder: A folder that the driver and Spark's tasks share, and to which only this query writes. None: there are
            no files, and rows are compressed instead.
        min_bytes: Rows that take more bytes than this go into a file.
    """

    folder: Path | None
    min_bytes: int = COMPRESS_ABOVE_BYTES

    @classmethod
    def create_for_query(cls, scratch: Path | None, query: str) -> PayloadFiles:
        """Returns the place for the large rows of one query.

        Args:
            scratch: The folder that contains the folders of all queries; None if the driver and Spark's tasks share no
                folder.
            query: The name of the query, which is also the name of its folder.
        """
        return cls(None if scratch is None else scratch / query)

    def write_rows(self, rows: pa.Table) -> bytes:
        """Converts rows to a payload: compressed rows, or the name of a new file for rows that are large."""
        if self.folder is None or rows.nbytes <= self.min_bytes:
            return encode_compressed_ipc(rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{uuid.uuid4()}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return _FILED + str(path).encode()

    def remove_files(self) -> None:
        """Removes the files that this streaming query has written.

        Call it only after a batch is committed: until then Spark may still read the files.
        """
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


NO_FILES = PayloadFiles(None)
"""No files: all rows are compressed."""


def encode_payloads(emitted: Emissions, files: PayloadFiles = NO_FILES) -> Payloads:
    """Returns what passes through Spark for the rows and bytes that a fold emitted: pairs of kind and payload.

    Args:
        emitted: Pairs of kind and content; content is bytes or rows.
        files: Where large rows are stored; by default they are compressed.
    """
    return [
        (kind, compress_if_large(content) if isinstance(content, bytes) else files.write_rows(content))
        for kind, content in emitted
    ]


def read_payload(payload: bytes | pa.Buffer) -> pa.Table:
    """Returns the rows of a payload, which has the rows or the name of their file.

    Dictionary-encoded texts stay encoded.
    """
    seen = memoryview(payload)
    if seen[: len(_FILED)] != _FILED:
        return decode_ipc(payload)
    return pa.ipc.open_stream(pa.memory_map(bytes(seen[len(_FILED) :]).decode())).read_all()


def unpack_payloads(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A `mapInArrow` function: yields the rows that the payloads in the column `payload binary` contain."""
    for batch in batches:
        for payload in batch.column("payload"):
            yield from read_payload(payload.as_buffer()).to_batches()
