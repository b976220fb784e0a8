"""Which constants are limits on a size, and how to force them: whatever they are, results must be the same."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from importlib import import_module

import pytest

from sessionlake.lake.catalog import Catalog
from sessionlake.lake.folders import Folders
from sessionlake.lake.storage import Limits

FORCED: dict[str, dict[str, int]] = {
    "bronze.archive.members": {"_CHUNK": 1},
    "bronze.archive.source": {"_SPLIT_BYTES": 1},
    "bronze.job": {"_FEW_BYTES": 0, "_FEW_MESSAGES": 0},
    "bronze.silences": {"_AT_ONCE": 1},
    "bronze.verify": {"SLICE_OFFSETS": 1},
    "forgetting.search": {"_PIECE_BYTES": 64},
    "gold.aggregate.groups": {"_WIDEST": 0},
    "gold.alerts.stored": {"_NAMED": 0},
    "gold.alerts.verify": {"_AT_ONCE": 1},
    "gold.fold.outputs": {"_PAYLOAD_ROWS": 1, "FEW_CHANGES": 0},
    "gold.fold.pack": {"_TASK_ROWS": 0},
    "gold.fold.shard": {"_APART": 0},
    "gold.fold.state": {"MOST_ROWS": 0, "MOST_POINTS": 0},
    "gold.query": {"_AT_ONCE": 1},
    "gold.recompute": {"GROUPS": 1},
    "gold.references.corrections": {"_SLICE": 1, "_NAMED": 0},
    "gold.references.lookup": {"_PIECE": 1},
    "gold.references.lookups": {"_NAMED": 0},
    "gold.references.taken": {"PART": 1},
    "gold.rules.batch": {"_SLICES": 0, "_LEAST_STEP": 1},
    "gold.rules.conditions": {"_CELLS": 0},
    "gold.slow": {"_NAMED": 0},
    "integrity.state": {"_FEW": 0},
    "integrity.state_difference": {"_LOOKED_AT": 1},
    "integrity.stream_times": {"_RECENT": 0},
    "lake.books": {"_AT_ONCE": 0},
    "lake.file_keys": {"_IN_USE": 0, "_LARGE": 0, "_LONG": 1, "_PART": 1},
    "lake.file_rows": {"_BATCH": 1, "_FEW": 0},
    "lake.file_statistics": {"_LONGEST_TEXT": 1},
    "lake.folder_upkeep": {"ROW_GROUP": 1},
    "lake.folders": {"_REWRITTEN": 0},
    "lake.key_index": {"_WIDEST": 1},
    "lake.marked_merge": {"_CROWD": 2},
    "lake.parquet": {"_GATHERED_BYTES": 1},
    "lake.positions": {"_AT_ONCE": 1},
    "lake.reading": {"_NAMED": 0},
    "lake.rows_by_key": {"_COMPARED": 1, "_IN_ONE_PIECE": 0},
    "lake.spark_merge": {"_NAMED": 0},
    "lake.tables": {"_FEW": 0},
    "processors.by_class": {"_SLICE": 1},
    "processors.computation": {"_GROUPS": 1},
    "processors.messages": {"_SLICE": 1},
    "protocol.binary": {"_SLICE_BYTES": 1},
    "protocol.chunk": {"LARGE": 0},
    "protocol.upserts": {"_CHUNK_BYTES": 1},
    "runtime.frames": {"_FEW": 0},
    "silver.fold.pack": {"BLOCK_MESSAGES": 1, "BLOCK_BYTES": 1},
    "silver.merge.batch_range": {"NAMED_SESSIONS": 0},
    "silver.merge.cluster": {"_CHANGES_A_TASK": 1},
    "silver.merge.merger": {"_MERGE_MESSAGES": 0, "_MERGE_CHANGES": 0, "_CHANGES_AT_HAND": 0},
    "silver.merge.seq_history": {"_TRIED": 1},
    "silver.merge.snapshot_cluster": {"NAMED_SESSIONS": 0, "_CUTS_A_TASK": 1},
    "silver.merge.splits": {"_AT_ONCE": 1},
    "silver.rebuild.replay": {"_TASK_CHANGES": 1},
    "silver.rebuild.slices": {"SLICE_MESSAGES": 1, "SLICE_BYTES": 1},
    "streaming.losses": {"_AT_MOST": 1},
}
"""By module, the limits up to which work is done one way and beyond it another, and the least that each can be."""

OTHERS: dict[str, tuple[str, ...]] = {
    "what is larger is refused, or goes to where what cannot be used is: the limit is what is promised": (
        "bronze.archive.files._LARGEST_DIRECTORY",
        "bronze.archive.lines.LONGEST_LINE",
        "bronze.archive.members.LONGEST_MEMBER",
        "gold.references.lookup._MOST_BYTES",
        "gold.rules.parse.DEEPEST",
        "gold.rules.parse.LONGEST_MINUTES",
    ),
    "how much of a text, of a list or of a history is told": (
        "gold.fold.outputs.MOST_CAUSES",
        "history.asof._LOOKED_AT",
        "history.asof._NAMED",
        "history.missing._NAMED",
        "processors.outputs._LONGEST",
        "silver.fold.pack._NAMED",
    ),
    "how often something is tried, or how long it is waited for": (
        "bronze.query._TRIES",
        "bronze.topic_book._LOOKS",
        "bronze.topic_rules._STEADY_LOOKS",
        "gold.references.lookup._LONGEST_PAUSE",
        "gold.references.lookups._DOUBLED",
        "gold.references.lookups._GIVEN_UP",
        "lake.catalog._ATTEMPTS",
        "lake.conflicts._ATTEMPTS",
        "lake.folder_removal._ATTEMPTS",
        "lake.folder_staging._ATTEMPTS",
        "lake.folder_upkeep._ATTEMPTS",
        "lake.folder_upkeep._HOUR",
        "lake.leases._ATTEMPTS",
        "lake.leases._RENEWED",
        "lake.leases._TRUSTED",
        "lake.log_commits._ATTEMPTS",
        "lake.table_files._ATTEMPTS",
    ),
    "when upkeep is worth its cost, of which no result depends": (
        "bronze.silences._LAST",
        "gold.expiry._STEPS",
        "lake.catalog._FULL_BYTES",
        "lake.catalog._MANY_FILES",
        "lake.catalog._WASTE",
        "lake.catalog_history._LATEST",
        "lake.catalog_history._MANY",
        "lake.export._MARGIN",
        "lake.export._SAMPLE",
        "lake.folder_upkeep._WORTHWHILE",
        "lake.marked_merge._LARGEST_TIER",
        "lake.positions._WORTHWHILE",
        "lake.table_schema.CHECKPOINT_INTERVAL",
        "lake.tiers.LARGEST",
        "lake.tiers._ENOUGH_CLOSED",
        "lake.version_checksums._FARTHEST",
        "lake.version_checksums._KEPT",
    ),
    "a part of a format, of a unit or of an algorithm": (
        "bronze.archive.members._EXTRA",
        "lake.writable._INDEXED",
        "gold.aggregate.functions._SPLIT",
        "gold.aggregate.order._HEX_DIGITS",
        "gold.aggregate.sketches.QUANTILE_ERROR",
        "gold.aggregate.sketches._DROPPED",
        "gold.aggregate.sketches._RANK_BITS",
        "gold.aggregate.sketches._REGISTERS",
        "gold.aggregate.standard._MINUTE",
        "gold.alerts.sql._TOLERANCE",
        "gold.compare._TOLERANCE",
        "gold.fold.pack.PLACE_BITS",
        "gold.job._IDLE_TIMEOUTS",
        "gold.references.lookup._OK",
        "gold.rules.batch._DAY",
        "gold.testing._NEAR",
        "lake.books.CARRIED",
        "lake.deletion_vectors._ARRAY",
        "lake.deletion_vectors._CONTAINER",
        "lake.deletion_vectors._MAGIC",
        "lake.deletion_vectors._NAME",
        "lake.deletion_vectors._NO_RUNS",
        "lake.erasures._SALT_BYTES",
        "lake.file_rows._PARSED",
        "lake.spark_reader._CELL_BYTES",
        "lake.txn._BATCHES",
        "processors.session._TIMER_BYTES",
    ),
    "stands for what is not there, or for the end of time": (
        "bronze.verify._NEVER",
        "gold.aggregate.late.NEVER",
        "gold.aggregate.order.NO_LIFE",
        "gold.enrich.asof.OPEN",
        "gold.enrich.asof._MOST",
        "gold.fold.points.UNKNOWN",
        "gold.fold.shard._OF_TOPIC",
        "lake.absent.NO_END",
        "lake.commits._NOWHERE",
        "lake.txn._LAST",
        "processors.api.NEVER",
        "silver.rebuild.replay._LAST_SLICE",
    ),
}
"""Numbers of modules that are no such limits, by the reason why."""


def force(patch: pytest.MonkeyPatch, above: int = 0) -> None:
    """Sets all limits to the least that they can be, and so much above it; those of the storage to `above` itself."""
    for module, limits in FORCED.items():
        for name, least in limits.items():
            home = import_module(f"sessionlake.{module}")
            value = getattr(home, name)
            users = [home] if name.startswith("_") else [m for m in _loaded() if vars(m).get(name, None) is value]
            for user in {home.__name__: home, **{user.__name__: user for user in users}}.values():
                patch.setattr(user, name, least + above)
    for storage in (Folders, Catalog):
        patch.setattr(storage, "limits", replace(storage.limits, **{one.name: above for one in fields(Limits)}))


def _loaded() -> list[object]:
    return [module for name, module in list(sys.modules.items()) if name.startswith("sessionlake.")]
