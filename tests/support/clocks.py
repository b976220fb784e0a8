"""A machine's clock that is set back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

import pytest


def set_clock_back(patch: pytest.MonkeyPatch, hours: float) -> None:
    """From now on the ledger is told a time so long ago."""
    to = datetime.now(UTC) - timedelta(hours=hours)

    class Clock:
        @staticmethod
        def now(_: tzinfo) -> datetime:
            return to

    patch.setattr("sessionlake.ledger.entries.datetime", Clock)
