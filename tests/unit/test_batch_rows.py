"""The rows a batch adds to products: shards that emit their few changes and shards that emit rows, added up once."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.aggregate.standard import STANDARD
from sessionlake.gold.batch.rows import BatchProductRows, GoldFoldResult
from sessionlake.gold.fold import product_payloads
from sessionlake.gold.fold.outputs import GoldFoldReport
from sessionlake.gold.fold.product_payloads import compute_product_rows, create_product_payloads
from sessionlake.protocol.chunk import encode_ipc
from sessionlake.streaming.folded import FoldedBatch

DECLARED = DeclaredColumns(("price", "qty"), ("status",))
NO_SPARK: Any = None


def make_changes(session: str, count: int, rng: random.Random) -> pa.Table:
    rows = [
        {
            "topic": "capture.a", "session_id": session, "row_id": rng.choice("ab"), "partition": 0,
            "ts": rng.randrange(0, 400_000), "position": i, "ordinal": 0,
            "value:0": float(rng.randrange(100)), "value:1": rng.choice([None, 1.0]),
            "text:0": rng.choice([None, "on"]),
        }
        for i in range(count)
    ]  # fmt: skip
    types = {"partition": pa.int32(), "ordinal": pa.int32(), "ts": pa.int64(), "position": pa.int64()}
    texts = {"topic", "session_id", "row_id", "text:0"}
    fields = [(name, types.get(name, pa.string() if name in texts else pa.float64())) for name in rows[0]]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def rows_by_key(product: Product, rows: pa.Table) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {tuple(row[name] for name in product.row_keys): row for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


@pytest.mark.parametrize("counts", [(3, 3), (30, 30), (3, 30), (30, 3, 2)])
def test_every_change_of_a_batch_counts_once_whether_its_shard_has_few_or_many(
    monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...]
) -> None:
    monkeypatch.setattr(product_payloads, "FEW_CHANGES", 10)
    rng = random.Random(1)
    shards = [make_changes(f"s{number}", count, rng) for number, count in enumerate(counts)]
    inline: dict[str, list[bytes | None]] = {}
    report = GoldFoldReport()
    for shard in shards:
        for payload in create_product_payloads(shard, DECLARED, STANDARD):
            inline.setdefault(payload.kind, []).append(encode_ipc(payload.rows))
            report += GoldFoldReport(spans={payload.kind: payload.row_range})
    batch = BatchProductRows(NO_SPARK, GoldFoldResult(FoldedBatch(NO_SPARK, inline), report), DECLARED, STANDARD)
    expected = compute_product_rows(pa.concat_tables(shards), DECLARED, STANDARD)
    for product in STANDARD:
        rows = batch.find_product_rows(product)
        assert isinstance(rows, pa.Table)
        assert rows_by_key(product, rows) == rows_by_key(product, expected[product.name])
        assert rows_by_key(product, batch.collect_product_rows(product)) == rows_by_key(product, expected[product.name])
