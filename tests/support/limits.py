"""Lists the constants that are limits on sizes, and changes them in tests. Results must not depend on them."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from importlib import import_module

import pytest

from sessionlake.delta.catalog.storage import CatalogStorage
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.storage.limits import DriverLimits

FORCED: dict[str, dict[str, int]] = {
    "bronze.archive.members": {"_CHUNK": 1},
    "bronze.archive.source": {"_SPLIT_BYTES": 1},
    "bronze.job": {"_IN_MEMORY_BYTES": 0},
    "bronze.polls": {"_FEW_MESSAGES": 0},
    "bronze.silences": {"_AT_ONCE": 1},
    "bronze.verify": {"SLICE_OFFSETS": 1},
    "operations.forgetting.search": {"_PIECE_BYTES": 64},
    "gold.alerts.lake_rule_inputs": {"_MAX_FILTER_VALUES": 0},
    "gold.verify.rules": {"_RULES_PER_JOB": 1},
    "gold.fold.outputs": {"_PAYLOAD_ROWS": 1},
    "gold.fold.product_payloads": {"FEW_CHANGES": 0},
    "gold.fold.pack": {"_TASK_ROWS": 0},
    "gold.fold.shard": {"_APART": 0},
    "gold.fold.state": {"MOST_ROWS": 0, "MOST_POINTS": 0},
    "gold.query": {"_AT_ONCE": 1},
    "gold.batch.products": {"GROUPS": 1},
    "gold.references.corrections": {"_SLICE_ROWS": 1},
    "gold.references.lookup": {"_CHUNK_BYTES": 1},
    "gold.references.lookups": {"_MAX_FILTER_VALUES": 0},
    "gold.references.applied": {"MEMORY_FACTOR": 1},
    "gold.rules.batch": {"_MAX_SLICES": 0, "_MIN_STEP": 1},
    "gold.rules.conditions": {"_MAX_CELLS": 0},
    "gold.batch.averages": {"_NAMED": 0},
    "integrity.state": {"_MAX_UNCOMPRESSED_CURSORS": 0},
    "integrity.state_difference": {"_LOOKED_AT": 1},
    "integrity.stream_times": {"_MAX_RECENT_NOTES": 0},
    "ledger.books": {"_AT_ONCE": 0},
    "delta.catalog.memory": {"_SMALL_BYTES": 0},
    "delta.folders.file_keys": {"_IN_USE": 0, "_LARGE": 0, "_LONG": 1, "_PART": 1},
    "delta.folders.file_rows": {"_BATCH": 1, "_FEW": 0},
    "delta.folders.file_statistics": {"_LONGEST_TEXT": 1},
    "delta.folders.compaction": {"ROW_GROUP": 1},
    "delta.home": {"_REWRITE_FACTOR": 0},
    "delta.folders.key_index": {"_WIDEST": 1},
    "delta.folders.marked_merge": {"_CROWD": 2},
    "delta.folders.parquet": {"_GATHERED_BYTES": 1},
    "ledger.positions": {"_AT_ONCE": 1},
    "delta.storage.reading": {"_NAMED": 0},
    "delta.folders.rows_by_key": {"_COMPARED": 1, "_IN_ONE_PIECE": 0},
    "delta.storage.spark_writes": {"_MAX_NAMED_VALUES": 0},
    "delta.lake": {"_SMALL_ROWS": 0},
    "processors.by_class": {"_SLICE": 1},
    "processors.computation": {"_GROUPS": 1},
    "processors.messages": {"_SLICE": 1},
    "protocol.arrow": {"_WIDEST": 0},
    "protocol.binary": {"_SLICE_BYTES": 1},
    "protocol.chunk": {"COMPRESS_ABOVE_BYTES": 0},
    "protocol.upserts": {"_CHUNK_BYTES": 1},
    "spark.frames": {"_FEW": 0},
    "silver.fold.pack": {"BLOCK_MESSAGES": 1, "BLOCK_BYTES": 1},
    "silver.merge.batch_range": {"NAMED_SESSIONS": 0},
    "silver.merge.cluster": {"_CHANGES_A_TASK": 1},
    "silver.merge.merger": {"_MERGE_MESSAGES": 0, "_MERGE_CHANGES": 0, "_CHANGES_IN_MEMORY": 0},
    "silver.merge.seq_history": {"_TRIED": 1},
    "silver.merge.snapshot_cluster": {"NAMED_SESSIONS": 0, "_CUTS_A_TASK": 1},
    "silver.merge.splits": {"_AT_ONCE": 1},
    "operations.rebuild.replay": {"_TASK_CHANGES": 1},
    "operations.rebuild.slices": {"SLICE_MESSAGES": 1, "SLICE_BYTES": 1},
    "streaming.restored_tables": {"_AT_MOST": 1},
}
"""Limits by module that decide between two ways of working, with the smallest value that each can have."""

OTHERS: dict[str, tuple[str, ...]] = {
    "what is larger is refused, or goes to where what cannot be used is: the limit is what is promised": (
        "bronze.archive.files._MAX_DIRECTORY_BYTES",
        "bronze.archive.lines.MAX_LINE_BYTES",
        "bronze.archive.members.MAX_MEMBER_BYTES",
        "gold.references.lookup._MAX_BYTES",
        "gold.rules.parse.MAX_DEPTH",
        "gold.rules.parse.MAX_WINDOW_MINUTES",
    ),
    "how much of a text, a list or a history is shown": (
        "gold.fold.outputs.MOST_CAUSES",
        "history.asof._MAX_SEARCHED",
        "history.asof._MAX_NAMED",
        "history.missing._MAX_NAMED",
        "processors.outputs._LONGEST",
        "silver.fold.pack._MAX_NAMED_PARTITIONS",
    ),
    "how often something is tried, or how long it is waited for": (
        "bronze.query._MAX_ATTEMPTS",
        "bronze.topic_book._MAX_LOOKS",
        "operations.forgetting.publications._TRIGGERS",
        "operations.retention.removal._TIMEOUTS",
        "bronze.topic_rules._DELETED_AFTER_LOOKS",
        "gold.references.lookups._MAX_DOUBLINGS",
        "gold.references.lookups._MAX_UNKNOWN_ANSWERS",
        "delta.catalog.storage._ATTEMPTS",
        "delta.storage.conflicts._ATTEMPTS",
        "delta.folders.removal._ATTEMPTS",
        "delta.folders.staging._ATTEMPTS",
        "delta.folders.compaction._ATTEMPTS",
        "delta.folders.upkeep._HOUR",
        "delta.catalog.leases._ATTEMPTS",
        "delta.catalog.leases._RENEWED",
        "delta.catalog.leases._TRUSTED",
        "delta.folders.log._ATTEMPTS",
        "delta.folders.table_files._ATTEMPTS",
    ),
    "when upkeep is worth its cost, of which no result depends": (
        "bronze.silences._LAST",
        "gold.tables.expiry._STEPS",
        "operations.retention.removal._STEPS",
        "delta.catalog.storage._FULL_BYTES",
        "delta.catalog.storage._MANY_FILES",
        "delta.catalog.storage._WASTE",
        "delta.catalog.history._LATEST",
        "delta.catalog.history._MANY",
        "delta.export._MARGIN",
        "delta.export._SAMPLE",
        "delta.folders.upkeep._WORTHWHILE",
        "delta.folders.marked_merge._LARGEST_TIER",
        "ledger.positions._WORTHWHILE",
        "delta.schemas.properties.CHECKPOINT_INTERVAL",
        "delta.folders.compaction.LARGEST",
        "delta.folders.compaction._ENOUGH_CLOSED",
        "delta.folders.version_checksums._FARTHEST",
        "delta.folders.version_checksums._KEPT",
    ),
    "a part of a format, of a unit or of an algorithm": (
        "bronze.archive.members._EXTRA",
        "delta.folders.writable._INDEXED",
        "gold.aggregate.decimals.MOST_DIGITS",
        "gold.aggregate.decimals._LIMB",
        "gold.aggregate.functions._SPLIT",
        "gold.fold.unscaled_decimals._NO_DECIMAL",
        "gold.fold.unscaled_decimals._LAST_INTEGER",
        "gold.aggregate.order._HEX_DIGITS",
        "gold.aggregate.sketches.QUANTILE_ERROR",
        "gold.aggregate.sketches._DROPPED",
        "gold.aggregate.sketches._RANK_BITS",
        "gold.aggregate.sketches._REGISTERS",
        "gold.aggregate.standard._MINUTE",
        "gold.verify.rule_columns._TOLERANCE",
        "spark.compare._TOLERANCE",
        "gold.fold.pack.PLACE_BITS",
        "gold.job._IDLE_TIMEOUTS",
        "gold.references.lookup._OK",
        "gold.rules.batch._DAY",
        "gold.testing._NEAR",
        "ledger.books.CARRIED",
        "delta.folders.deletion_vectors._ARRAY",
        "delta.folders.deletion_vectors._CONTAINER",
        "delta.folders.deletion_vectors._MAGIC",
        "delta.folders.deletion_vectors._NAME",
        "delta.folders.deletion_vectors._NO_RUNS",
        "ledger.erasures._SALT_BYTES",
        "operations.forgetting.search._HEAD",
        "operations.forgetting.search._RAW",
        "delta.folders.file_rows._PARSED",
        "delta.storage.spark_reader._CELL_BYTES",
        "delta.storage.txn._BATCHES",
        "processors.session._TIMER_BYTES",
    ),
    "stands for what is not there, or for the end of time": (
        "bronze.verify._NEVER",
        "gold.aggregate.late.NEVER",
        "gold.aggregate.order.NO_LIFE",
        "gold.enrich.asof.OPEN_END",
        "gold.fold.points.UNKNOWN",
        "gold.fold.shard._OF_TOPIC",
        "ledger.absent.NO_END",
        "delta.storage.commits._NOWHERE",
        "delta.storage.txn._LAST",
        "processors.api.NEVER",
        "operations.rebuild.replay._LAST_SLICE",
    ),
}
"""Numeric constants that are not such limits, by reason."""


def force(patch: pytest.MonkeyPatch, above: int = 0) -> None:
    """Sets all limits to their smallest value plus `above`, and those of the storage to `above`."""
    for module, limits in FORCED.items():
        for name, least in limits.items():
            home = import_module(f"sessionlake.{module}")
            value = getattr(home, name)
            users = [home] if name.startswith("_") else [m for m in _loaded() if vars(m).get(name, None) is value]
            for user in {home.__name__: home, **{user.__name__: user for user in users}}.values():
                patch.setattr(user, name, least + above)
    for storage in (FolderStorage, CatalogStorage):
        patch.setattr(storage, "limits", replace(storage.limits, **{one.name: above for one in fields(DriverLimits)}))


def _loaded() -> list[object]:
    return [module for name, module in list(sys.modules.items()) if name.startswith("sessionlake.")]
