"""What a start remembers of tables: forgotten with a commit by any thread, also one beside the reading."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from sessionlake.delta.catalog import memory
from sessionlake.delta.catalog.memory import CachingTableReader
from sessionlake.delta.schemas.names import LEDGER
from sessionlake.delta.storage.reading import Condition
from support.tables import Tables

ONE, TWO = pa.table({"batch_id": [1]}), pa.table({"batch_id": [1, 2]})


class Asked(Tables):
    """Counts questions, and lets something happen before each answer is given."""

    def __init__(self) -> None:
        super().__init__({LEDGER: ONE})
        self.questions, self.beside = 0, lambda: None

    def exists(self, table: str) -> bool:
        memory.remember_table_exists(table)
        return super().exists(table)

    def read_arrow_table(self, table: str, *conditions: Condition, **more: Any) -> pa.Table:
        self.questions += 1
        found = super().read_arrow_table(table, *conditions, **more)
        self.beside()
        return found


def in_another_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def commit(asked: Asked) -> None:
    asked.tables[LEDGER] = TWO
    memory.forget_cached_rows(LEDGER)


def test_rows_are_read_once_in_a_block_and_again_behind_a_commit():
    asked = Asked()
    reader = CachingTableReader(asked, str, lambda _: False)
    with memory.cache_table_reads():
        assert [reader.count_rows(LEDGER) for _ in range(3)] == [1, 1, 1]
        assert asked.questions == 1
        in_another_thread(lambda: commit(asked))
        assert [reader.count_rows(LEDGER) for _ in range(2)] == [2, 2]
        assert asked.questions == 2


def test_a_block_of_another_thread_that_ends_takes_nothing_from_this_one():
    asked = Asked()
    reader = CachingTableReader(asked, str, lambda _: False)

    def other() -> None:
        with memory.cache_table_reads():
            pass

    with memory.cache_table_reads():
        in_another_thread(other)  # it remembers as little as this one
        assert reader.count_rows(LEDGER) == 1
        in_another_thread(lambda: commit(asked))
        assert reader.count_rows(LEDGER) == 2
    assert not memory._all_caches


def test_rows_that_were_read_while_a_commit_was_made_are_not_kept():
    asked = Asked()
    reader = CachingTableReader(asked, str, lambda _: False)

    def beside() -> None:
        asked.beside = lambda: None
        in_another_thread(lambda: commit(asked))

    asked.beside = beside
    with memory.cache_table_reads():
        assert reader.count_rows(LEDGER) == 1
        assert reader.count_rows(LEDGER) == 2
