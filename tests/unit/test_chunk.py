"""Tables as bytes, and large ones in fewer of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sessionlake.protocol.chunk import (
    COMPRESS_ABOVE_BYTES,
    compress_if_large,
    decode_ipc,
    decompress_if_compressed,
    encode_ipc,
    is_chunk,
)


@pytest.mark.parametrize("rows", [0, 1, 1_000, 100_000])
def test_a_table_is_read_as_it_was_written_however_large(rows: int) -> None:
    table = pa.table({"number": pa.array(range(rows), pa.int64()), "text": ["a"] * rows})
    sent = compress_if_large(encode_ipc(table))
    assert decode_ipc(sent).equals(table)
    assert decode_ipc(pa.py_buffer(sent)).equals(table)
    assert is_chunk(sent)


@pytest.mark.parametrize(
    "size", [COMPRESS_ABOVE_BYTES - 1, COMPRESS_ABOVE_BYTES, COMPRESS_ABOVE_BYTES + 1, 5 * COMPRESS_ABOVE_BYTES]
)
def test_contents_come_back_and_only_large_ones_are_touched(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = compress_if_large(content)
    assert bytes(decompress_if_compressed(sent)) == content
    assert (sent == content) == (size <= COMPRESS_ABOVE_BYTES)
    assert len(sent) <= COMPRESS_ABOVE_BYTES
