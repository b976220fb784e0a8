"""Delta's transaction identifiers, by which a write that is repeated is recognised and skipped."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Txn:
    """One batch of one streaming query, as `txnAppId` and `txnVersion` name it."""

    app_id: str
    version: int

    def on(self, table: str) -> str:
        """Application id of this query's writes to one table."""
        return f"{self.app_id}:{table}"
