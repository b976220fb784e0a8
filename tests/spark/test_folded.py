"""What a fold emits, as the driver sees it and as tasks read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.protocol.chunk import COMPRESS_ABOVE_BYTES, compress_if_large, encode_ipc
from sessionlake.silver.fold.unpack import PayloadUnpacker
from sessionlake.streaming.folded import collect_fold_reports
from sessionlake.streaming.payload_files import PayloadFiles, encode_payloads, unpack_payloads


def test_what_is_large_stays_where_it_is_however_well_it_was_compressed_and_is_read_whole(spark: Any) -> None:
    few, many = (pa.table({"n": np.zeros(rows, np.int64)}) for rows in (10, COMPRESS_ABOVE_BYTES))
    report = b"x" * (2 * COMPRESS_ABOVE_BYTES)
    payloads = [
        ("rows", encode_ipc(few)),
        ("rows", compress_if_large(encode_ipc(many))),
        ("/report", compress_if_large(report)),
    ]
    assert (
        max(len(payload) for _, payload in payloads) < COMPRESS_ABOVE_BYTES
    )  # by their length, all could be brought along
    frame = spark.createDataFrame(payloads, "kind string, payload binary")
    folded, reports = collect_fold_reports(frame, "/report", COMPRESS_ABOVE_BYTES)
    assert reports == [report]
    assert folded.collected_payloads_by_kind["rows"] == [payloads[0][1], None]
    assert folded.get_payloads_if_all_collected(["rows"]) is None
    rows = frame.where("kind = 'rows'").select("payload").mapInArrow(PayloadUnpacker(7), "n bigint, _batch bigint")
    assert rows.groupBy("n", "_batch").count().collect() == [(0, 7, 10 + COMPRESS_ABOVE_BYTES)]


def test_rows_that_are_in_a_file_are_not_taken_for_few_and_are_read_by_tasks(spark: Any, tmp_path: Path) -> None:
    few, many = (pa.table({"n": np.zeros(rows, np.int64)}) for rows in (10, 1_000))
    payloads = encode_payloads(
        [("rows", few), ("rows", many), ("/report", b"x")], PayloadFiles(tmp_path / "gold", min_bytes=80)
    )
    frame = spark.createDataFrame(payloads, "kind string, payload binary")
    folded, reports = collect_fold_reports(frame, "/report", COMPRESS_ABOVE_BYTES)
    assert reports == [b"x"]
    assert folded.collected_payloads_by_kind["rows"] == [encode_ipc(few), None]
    rows = frame.where("kind = 'rows'").select("payload").mapInArrow(unpack_payloads, "n bigint")
    assert rows.count() == 1_010
