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
    """The transaction of one write to a table, or of all writes of one batch.

    Delta skips it if it was committed before.

    Attributes:
        app_id: id of the writer, such as the id of a streaming query. Delta's `txnAppId` also includes the table.
        version: number of the write, such as the batch number. It is Delta's `txnVersion`.
    """

    app_id: str
    version: int

    @classmethod
    def create_txn_with_maximum_version(cls, app_id: str) -> Txn:
        """Returns the transaction with the highest possible version.

        Once it is committed, Delta skips all others of `app_id`.
        """
        return cls(app_id, _LAST)

    @property
    def txn_of_second_write(self) -> Txn:
        """The transaction for a second write of the same batch to the same table."""
        return Txn(f"{self.app_id}:changed", self.version)

    def add_fencing_token(self, token: int) -> Txn:
        """Returns the transaction for a write under a claim: its version starts with the claim holder's fencing token.

        So every transaction of a later holder of the claim is newer than all transactions of earlier holders.

        Args:
            token: the holder's fencing token. If it is 0, the transaction is returned unchanged.
        """
        return Txn(f"{self.app_id}:claimed", token * _BATCHES + self.version + 1) if token else self

    @classmethod
    def build_txn_before_lease_holder(cls, app_id: str, token: int) -> Txn:
        """Returns a transaction newer than those of all earlier lease holders, and older than those of this holder.

        Args:
            app_id: application id of the transaction.
            token: fencing token of this holder.
        """
        return cls(app_id, -1).add_fencing_token(token)

    def build_delta_app_id(self, table: str) -> str:
        """Returns the `txnAppId` that Delta gets for this transaction's writes to a table."""
        return f"{self.app_id}:{table}"

    def build_writer_options(self, table: str) -> dict[str, str]:
        """Returns the options with which Spark's Delta writer commits to the table as this transaction."""
        return {"txnAppId": self.build_delta_app_id(table), "txnVersion": str(self.version)}

    def build_session_conf(self, table: str) -> dict[str, str]:
        """Returns the Spark settings with which a MERGE, UPDATE or DELETE on the table commits as this transaction."""
        return {
            "spark.databricks.delta.write.txnAppId": self.build_delta_app_id(table),
            "spark.databricks.delta.write.txnVersion": str(self.version),
        }
