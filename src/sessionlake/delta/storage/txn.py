"""Transaction identifiers, by which Delta recognises a repeated write and skips it.

Delta stores the highest committed version of each application id. It skips a write with that version or a lower one.
"""

from __future__ import annotations

from dataclasses import dataclass

# Higher than every batch number.
_BATCHES = 1 << 40
_LAST = (1 << 63) - 1
REBUILD = "rebuild:"
"""Prefix of the application id of a rebuild. It also marks the rebuild's entry in the ledger."""
CLAIMED_APP = "replaced"
"""Application id of writes to `names.CLAIMED_TABLES`, which only the holder of a claim may change."""


@dataclass(frozen=True)
class Txn:
    """The transaction of one write, or of all writes of one batch.

    Attributes:
        app_id: id of the writer, such as the id of a streaming query. Delta's `txnAppId` also includes the table.
        version: number of the write, such as the batch number. It is Delta's `txnVersion`.
    """

    app_id: str
    version: int

    @classmethod
    def last_of_app(cls, app_id: str) -> Txn:
        """Returns the transaction with the highest version: after it, Delta skips all batches of the app."""
        return cls(app_id, _LAST)

    @property
    def second_write(self) -> Txn:
        """The transaction for a second write of the same batch to the same table."""
        return Txn(f"{self.app_id}:changed", self.version)

    def fenced_by(self, token: int) -> Txn:
        """Returns the transaction for a write under a claim, with the fencing token as the upper part of its version.

        So every transaction of a later holder of the claim is newer than all transactions of earlier holders.

        Args:
            token: the holder's fencing token (`Storage.token`). If it is 0, the transaction is returned unchanged.
        """
        return Txn(f"{self.app_id}:claimed", token * _BATCHES + self.version + 1) if token else self

    @classmethod
    def before_lease_holder(cls, app_id: str, token: int) -> Txn:
        """Returns a transaction that is newer than those of all earlier holders, and older than those of this holder.

        Args:
            token: fencing token of this holder.
        """
        return cls(app_id, -1).fenced_by(token)

    def app_id_for(self, table: str) -> str:
        """Returns Delta's `txnAppId` for writes to this table (two-level name)."""
        return f"{self.app_id}:{table}"

    def writer_options(self, table: str) -> dict[str, str]:
        """Returns the options with which Spark's Delta writer commits to the table as this transaction."""
        return {"txnAppId": self.app_id_for(table), "txnVersion": str(self.version)}

    def session_conf(self, table: str) -> dict[str, str]:
        """Returns the Spark settings with which a MERGE, UPDATE or DELETE on the table commits as this transaction."""
        return {
            "spark.databricks.delta.write.txnAppId": self.app_id_for(table),
            "spark.databricks.delta.write.txnVersion": str(self.version),
        }
