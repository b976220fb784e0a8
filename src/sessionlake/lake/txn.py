"""What makes a write recognisable when it is repeated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Txn:
    """One batch of one query: what makes its writes recognisable."""

    app_id: str
    version: int

    def on(self, table: str) -> str:
        """Application id of this query's writes to one table."""
        return f"{self.app_id}:{table}"
