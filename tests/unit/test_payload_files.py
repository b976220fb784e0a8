"""What a fold emits on its way past Spark, compressed or in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sessionlake.protocol.chunk import COMPRESS_ABOVE_BYTES
from sessionlake.streaming.payload_files import NO_FILES, PayloadFiles, encode_payloads, read_payload

TEXTS = pa.array(["a", None, "b"]).take(pa.array(np.arange(COMPRESS_ABOVE_BYTES) % 3)).dictionary_encode()
MANY = pa.table({"text": TEXTS, "n": np.arange(COMPRESS_ABOVE_BYTES)})


@pytest.mark.parametrize("rows", [MANY, MANY.slice(COMPRESS_ABOVE_BYTES - 70_000), MANY.slice(5, 10), MANY.slice(0, 0)])
@pytest.mark.parametrize("has_files", [True, False])
def test_rows_arrive_as_they_were_emitted(tmp_path: Path, rows: pa.Table, has_files: bool) -> None:
    files = PayloadFiles.create_for_query(tmp_path if has_files else None, "gold")
    ((kind, payload),) = encode_payloads([("rows", rows)], files)
    assert kind == "rows"
    assert read_payload(payload) == rows
    assert read_payload(pa.py_buffer(payload)) == rows


def test_what_is_large_is_in_a_file_if_there_is_a_place_for_it_and_nothing_else_is(tmp_path: Path) -> None:
    files = PayloadFiles.create_for_query(tmp_path, "gold")
    encode_payloads([("rows", MANY.slice(0, 10)), ("report", b"x" * 2 * COMPRESS_ABOVE_BYTES)], files)
    assert list(tmp_path.iterdir()) == []
    ((_, filed), (_, other)) = encode_payloads([("rows", MANY), ("rows", MANY)], files)
    assert len({filed, other}) == 2
    assert max(len(filed), len(other)) < 1_000 < len(encode_payloads([("rows", MANY)], NO_FILES)[0][1])
    assert len(list((tmp_path / "gold").iterdir())) == 2


def test_what_a_batch_leaves_is_removed_and_rows_that_are_read_stay(tmp_path: Path) -> None:
    files = PayloadFiles.create_for_query(tmp_path, "gold")
    ((_, payload),) = encode_payloads([("rows", MANY)], files)
    read = read_payload(payload)
    files.remove_files()
    files.remove_files()
    NO_FILES.remove_files()
    assert list(tmp_path.iterdir()) == []
    assert read == MANY
