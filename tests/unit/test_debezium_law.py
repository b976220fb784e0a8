"""The table of a feed that uses `debezium` is the database's table at every commit, whatever the transactions do."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from sessionlake.feeds.compiled import CompiledFeedReader
from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.reader import KafkaRecord, KafkaRecordColumns, read_record
from sessionlake.feeds.table import SessionTable
from support.debezium_source import COLUMNS, KEYS, Source
from support.feed_cases import feed
from support.seeds import seeds

DECIMALS = {"precise": "base64", "string": "text", "double": None}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def find_feed_of_topic(source: Source) -> Any:
    cents = {"type": "decimal(12,2)", "from": DECIMALS[source.decimals]}
    types = {"region": "string", "id": "bigint", "name": "string", "note": "string", "cents": cents}
    changed = {"type": "timestamp", "from": "epoch_us"}
    settings = {"name": "orders", "topics": "shop.*", "uses": "debezium", "key": [*KEYS]}
    return feed("{}", **settings, columns=types | {"changed": changed})


def source_of(seed: int) -> Source:
    rnd = random.Random(seed)
    return Source(rnd, rnd.choice([*DECIMALS]), rnd.random() < 0.5, rnd.random() < 0.5)


def expected(source: Source) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of the database in the types of the feed's columns."""
    found = {}
    for key, (*plain, cents, changed) in source.rows().items():
        total = None if cents is None else Decimal(cents).scaleb(-2)
        at = None if changed is None else EPOCH + timedelta(microseconds=changed)
        found[key] = dict(zip(COLUMNS, [*plain, total, at], strict=True))
    return found


@pytest.mark.parametrize("seed", seeds(40, 2_000))
def test_the_table_is_that_of_the_database_at_every_commit(seed):
    source = source_of(seed)
    given = find_feed_of_topic(source)
    table, offset = SessionTable(given), 0
    source.take_snapshot()
    for _ in range(30):
        while offset < len(source.sent):
            found = read_record(given, KafkaRecord("shop.orders", 0, offset, 0, None, source.sent[offset]))
            assert isinstance(found, DecodedMessage), found
            for event in found.events:
                table.apply_event(event)
            offset += 1
        rows = {tuple(row[name] for name in KEYS): row for row in table.rows.values()}
        assert rows == expected(source)
        source.transact()
    assert (table.gaps, table.duplicates) == (0, 0)


@pytest.mark.parametrize("seed", seeds(5, 100))
def test_the_fast_reader_reads_all_but_tombstones_itself(seed):
    source = source_of(seed)
    source.take_snapshot()
    for _ in range(100):
        source.transact()
    compiled = CompiledFeedReader.compile_feed(find_feed_of_topic(source))
    records = [KafkaRecord("shop.orders", 0, offset, 0, None, value) for offset, value in enumerate(source.sent)]
    compiled.read_records(KafkaRecordColumns.from_records(records))
    assert compiled.slow == source.sent.count(None)


def test_the_transactions_have_every_kind_of_change():
    done: Counter[str] = Counter()
    for seed in range(20):
        source = source_of(seed)
        for _ in range(30):
            source.transact()
        done += source.done
    assert all(done[kind] > 10 for kind in ("insert", "update", "unsent", "move", "delete", "truncate", "rollback")), (
        done
    )
