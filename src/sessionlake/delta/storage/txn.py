"""Delta's transaction identifiers, by which Delta recognises a repeated write and skips it."""

from __future__ import annotations

from dataclasses import dataclass

# Larger than any batch number.
_BATCHES = 1 << 40
_LAST = (1 << 63) - 1
REBUILD = "rebuild:"
"""Prefix of a rebuild's application id. A layer's earlier ledger entries describe tables that the rebuild replaced."""
CLAIMED_APP = "replaced"
"""Application id of writes that change rows of a table under a claim."""


@dataclass(frozen=True)
class Txn:
    """One batch of one streaming query: `txnAppId` and `txnVersion` in Delta's terms."""

    app_id: str
    version: int

    @classmethod
    def last(cls, app_id: str) -> Txn:
        """Returns a transaction that is newer than every batch of the query."""
        return cls(app_id, _LAST)

    @property
    def second_write(self) -> Txn:
        """The transaction for a batch's second write to the same table."""
        return Txn(f"{self.app_id}:changed", self.version)

    def fenced_by(self, token: int) -> Txn:
        """Returns this transaction ordered by claim holder: a later holder's transactions have higher versions.

        Args:
            token: the holder's fencing token (`Storage.token`). With 0 the transaction stays as it is.
        """
        return Txn(f"{self.app_id}:claimed", token * _BATCHES + self.version + 1) if token else self

    @classmethod
    def before_holder(cls, app_id: str, token: int) -> Txn:
        """Returns a transaction between those of all earlier holders and those of this token's holder."""
        return cls(app_id, -1).fenced_by(token)

    def app_id_for(self, table: str) -> str:
        """Returns the application id of this query's writes to one table."""
        return f"{self.app_id}:{table}"

    def session_conf(self, table: str) -> dict[str, str]:
        """Returns session settings that give a MERGE, UPDATE or DELETE this transaction."""
        return {
            "spark.databricks.delta.write.txnAppId": self.app_id_for(table),
            "spark.databricks.delta.write.txnVersion": str(self.version),
        }
