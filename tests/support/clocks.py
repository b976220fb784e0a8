"""Changes the clock that the ledger reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

import pytest


def set_clock_back(patch: pytest.MonkeyPatch, hours: float) -> None:
    """Makes the ledger's clock return a time this many hours ago."""
    to = datetime.now(UTC) - timedelta(hours=hours)

    class Clock:
        @staticmethod
        def now(_: tzinfo) -> datetime:
            return to

    patch.setattr("sessionlake.ledger.entries.datetime", Clock)
