"""Of which tables the history need not be read: batches alone have committed to them, as far as the ledger tells."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sessionlake.delta.schemas.names import AVERAGES, LEDGER
from sessionlake.streaming.restored_tables import _LATEST, _consists_of_batch_versions

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MANY = range(100 - _LATEST, 100)


@pytest.mark.parametrize(
    ("table", "latest", "versions", "entries", "expected"),
    [
        (AVERAGES, 3, [2, 3], 9, True),  # what was before the first batch has no rows to lose
        (AVERAGES, 4, [2, 3], 9, False),  # somebody else has committed since
        (AVERAGES, 2, [2, 3], 9, False),  # an older copy
        (AVERAGES, 4, [2, 4], 9, False),  # or in between
        (AVERAGES, 0, [], 9, True),
        (AVERAGES, 1, [], 9, True),
        (AVERAGES, 2, [], 9, False),
        (AVERAGES, 9, [9], None, False),  # of a sum, only the last is known
        (AVERAGES, 99, MANY, None, True),
        (AVERAGES, 99, MANY[1:], None, False),
        (LEDGER, 9, [], 9, True),
        (LEDGER, 10, [], 9, False),
        (LEDGER, 9, [], None, False),
    ],
)
def test_the_history_is_read_unless_batches_alone_have_committed(table, latest, versions, entries, expected):
    known = {table: [(NOW, version) for version in versions]}
    assert _consists_of_batch_versions(table, latest, known, entries) is expected
