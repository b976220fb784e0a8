"""Small tables whose rows are replaced under a claim: what a holder before replaces late is passed over."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sessionlake.delta.catalog import leases
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ERASURES, FORGET_CLAIM, LEASES, LEDGER, POSITIONS, RETAINED, RETENTION_CLAIM
from sessionlake.delta.storage import interface as storage
from sessionlake.delta.storage.txn import Txn
from sessionlake.ledger import erasures, retained
from sessionlake.ledger.books import read_stored_sums
from sessionlake.ledger.erasures import ErasureReceipt
from sessionlake.ledger.positions import update_ledger_sums
from sessionlake.ledger.progress import read_layer_offsets
from sessionlake.ledger.retained import RetentionRecord
from sessionlake.operations.retention.ledger import remove_old_ledger_entries
from sessionlake.settings.model import Settings
from support.ledgers import NOON, SPACING, entries

SECONDS = 3.0
OLD = RetentionRecord(LEDGER, NOON)
RECEIPT = ErasureReceipt("a", "capture.a", "", "00", datetime.now(UTC))


class Stopped:
    """A process that is stopped past its lease, when it has made sure that it may write; another works meanwhile."""

    def __init__(self, patch: pytest.MonkeyPatch, settings: Settings) -> None:
        patch.setattr(leases, "LENGTH", timedelta(seconds=SECONDS))
        patch.setattr(leases, "_renew_lease_until_done", lambda *_: None)  # its threads stand still, too
        patch.setattr(storage, "inject_fault_if_requested", self._passed)
        self._settings = settings
        self._at, self._meanwhile = "", lambda: None

    def before(self, table: str, meanwhile: Callable[[], Any]) -> None:
        self._at, self._meanwhile = f"sure:{table}", meanwhile

    def _passed(self, name: str) -> None:
        if name == self._at:
            self._at = ""
            mine = leases._HELD[Lake(self._settings).to_sql_identifier(LEASES)]
            held = mine[:]
            time.sleep(SECONDS)
            mine.clear()
            self._meanwhile()
            mine[:] = held


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Stopped:
    return Stopped(monkeypatch, settings)


@pytest.mark.soak
def test_sums_that_stand_for_removed_entries_stay_whoever_replaces_them_late(
    spark: Any, settings: Settings, stopped: Stopped
) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [LEDGER])
    lake.storage.append_rows(spark, LEDGER, entries(0, 2_000), Txn("fill", 0))
    before = list(read_layer_offsets(lake.reader(spark)))

    def removes() -> None:
        other = Lake(settings)
        with other.storage.hold_exclusive_claim(spark, RETENTION_CLAIM, "removes old rows"):
            assert remove_old_ledger_entries(spark, other, NOON + 800 * SPACING) == 800

    stopped.before(POSITIONS, removes)
    update_ledger_sums(spark, lake)
    reader = lake.reader(spark)
    assert read_stored_sums(reader).removed_before == NOON + 800 * SPACING
    assert list(read_layer_offsets(reader)) == before


@pytest.mark.soak
@pytest.mark.parametrize("table", [RETAINED, ERASURES])
def test_what_the_holder_before_replaces_late_is_passed_over_from_the_claim_on(
    spark: Any, settings: Settings, stopped: Stopped, table: str
) -> None:
    """The next one has written nothing yet."""
    lake = Lake(settings)
    name = {RETAINED: RETENTION_CLAIM, ERASURES: FORGET_CLAIM}[table]

    def writes() -> None:
        if table == RETAINED:
            retained.store_removal_record(spark, lake, OLD)
        else:
            erasures.store_erasure_receipt(spark, lake, RECEIPT)

    def rows() -> int:
        return lake.read(spark, table).count()

    def comes_next() -> None:
        with lake.storage.hold_exclusive_claim(spark, name, "comes next"):
            pass

    lake.create_or_update_tables(spark, [table])
    with lake.storage.hold_exclusive_claim(spark, name, "writes"):
        stopped.before(table, comes_next)
        writes()
        assert rows() == 0
    with lake.storage.hold_exclusive_claim(spark, name, "is the holder"):
        writes()
    assert rows() == 1
