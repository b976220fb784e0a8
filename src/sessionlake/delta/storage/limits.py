"""Sizes up to which work is done in the driver instead of the cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes up to which work is done in the driver, because a Spark job would cost more. Zero means never.

    Attributes:
        few_messages: messages in a batch up to which bronze brings its rows to the driver, and queries generate no
            code.
        few_changes: changes in a merged range of batches up to which the MERGEs generate no code.
        driver_changes: changes in a range of batches up to which the driver computes their net effect.
        driver_cuts: cuts in a range of batches up to which the driver makes their snapshots.
        driver_bytes: bytes that the driver may read for one merge. Its memory use is about four times as much.
        inline_bytes: bytes of one payload of a fold; larger ones stay where they were made.
        rewritten_rows: rows of a table up to which the driver merges into it by rewriting the files that have matches.
        index_bytes: bytes of memory for the places of keys in files (about 12 per row) and for the files' footers. Keys
            that do not fit are read each time.
    """

    few_messages: int
    few_changes: int
    driver_changes: int
    driver_cuts: int
    driver_bytes: int
    inline_bytes: int
    rewritten_rows: int
    index_bytes: int
