"""Tables as bytes, and large ones in fewer of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sessionlake.protocol.chunk import LARGE, compressed, is_chunk, plain, read_ipc, write_ipc


@pytest.mark.parametrize("rows", [0, 1, 1_000, 100_000])
def test_a_table_is_read_as_it_was_written_however_large(rows: int) -> None:
    table = pa.table({"number": pa.array(range(rows), pa.int64()), "text": ["a"] * rows})
    sent = compressed(write_ipc(table))
    assert read_ipc(sent).equals(table)
    assert read_ipc(pa.py_buffer(sent)).equals(table)
    assert is_chunk(sent)


@pytest.mark.parametrize("size", [LARGE - 1, LARGE, LARGE + 1, 5 * LARGE])
def test_contents_come_back_and_only_large_ones_are_touched(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sent = compressed(content)
    assert bytes(plain(sent)) == content
    assert (sent == content) == (size <= LARGE)
    assert len(sent) <= LARGE
