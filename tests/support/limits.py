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
    "bronze.silences": {"_AT_ONCE": 1},
    "bronze.verify": {"SLICE_OFFSETS": 1},
    "forgetting.search": {"_PIECE_BYTES": 64},
    "gold.aggregate.groups": {"_WIDEST": 0},
    "gold.alerts.stored": {"_NAMED": 0},
    "gold.alerts.verify": {"_AT_ONCE": 1},
    "gold.fold.outputs": {"_PAYLOAD_ROWS": 1, "FEW_CHANGES": 0},
    "gold.fold.pack": {"_TASK_ROWS": 0},
    "gold.fold.shard": {"_APART": 0},
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
    "lake.deletion_vectors": {"_ARRAY": 1},
    "lake.file_keys": {"_IN_USE": 0, "_LARGE": 0, "_LONG": 1, "_PART": 1},
    "lake.file_rows": {"_BATCH": 1, "_FEW": 0},
    "lake.folder_upkeep": {"_GATHERED_BYTES": 1, "ROW_GROUP": 1},
    "lake.folders": {"_REWRITTEN": 0},
    "lake.key_index": {"_WIDEST": 1},
    "lake.marked_merge": {"_CROWD": 1},
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
    "silver.rebuild.replay": {"_TASK_CHANGES": 1},
    "silver.rebuild.slices": {"SLICE_MESSAGES": 1, "SLICE_BYTES": 1},
    "streaming.losses": {"_AT_MOST": 1},
}
"""By module, the limits up to which work is done one way and beyond it another, and the least that each can be."""


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
