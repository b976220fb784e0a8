"""Sizes up to which work is done in the driver instead of on the cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DriverLimits:
    """Sizes up to which work is done in Spark's driver, because a Spark job would cost more. Zero means never.

    Attributes:
        few_messages: number of messages in a batch. Up to it, bronze reads the batch's rows into the driver, and Spark
            runs queries without generating code.
        few_changes: number of changes that are merged together. Up to it, Spark runs MERGEs without generating code.
        driver_changes: number of changes that are merged together. Up to it, the driver computes their net effect.
        driver_cuts: number of cuts (moments at which whole tables are stored) in the merged batches. Up to it, the
            driver builds their snapshots.
        driver_bytes: bytes that the driver may read for one merge. It uses about four times as much memory.
        inline_bytes: bytes of one payload that a fold returns. Larger payloads are not collected into the driver.
        rewritten_rows: number of rows of a table. Up to it, a MERGE in the driver rewrites files with replaced rows.
        index_bytes: bytes of memory for indexes of the keys in files (about 12 per row) and for the files' footers.
            Keys that do not fit are read from the files in each MERGE.
    """

    few_messages: int
    few_changes: int
    driver_changes: int
    driver_cuts: int
    driver_bytes: int
    inline_bytes: int
    rewritten_rows: int
    index_bytes: int
