"""Delta's transaction identifiers, by which a write that is repeated is recognised and skipped."""

from __future__ import annotations

from dataclasses import dataclass

# More than any number of a batch.
_BATCHES = 1 << 40
_LAST = (1 << 63) - 1
REBUILD = "rebuild:"
"""What the application id of a rebuild begins with: entries of its layer before it tell of tables replaced."""
CLAIMED_APP = "replaced"
"""Application id of those who change rows of a table under a claim."""


@dataclass(frozen=True)
class Txn:
    """One batch of one streaming query, as `txnAppId` and `txnVersion` name it."""

    app_id: str
    version: int

    @classmethod
    def last(cls, app_id: str) -> Txn:
        """One that no batch of the query comes behind."""
        return cls(app_id, _LAST)

    @property
    def second_write(self) -> Txn:
        """Of the batch's second write to a table."""
        return Txn(f"{self.app_id}:changed", self.version)

    def fenced_by(self, token: int) -> Txn:
        """This one in the order of who holds a claim: those of a later holder have higher versions.

        Args:
            token: the holder's (`Storage.token`); under 0 it is as it was.
        """
        return Txn(f"{self.app_id}:claimed", token * _BATCHES + self.version + 1) if token else self

    @classmethod
    def before_holder(cls, app_id: str, token: int) -> Txn:
        """One that is higher than those of all holders before, and lower than those of the one with this token."""
        return cls(app_id, -1).fenced_by(token)

    def app_id_for(self, table: str) -> str:
        """Application id of this query's writes to one table."""
        return f"{self.app_id}:{table}"

    def session_conf(self, table: str) -> dict[str, str]:
        """A session's settings, by which a MERGE, UPDATE or DELETE bears the transaction."""
        return {
            "spark.databricks.delta.write.txnAppId": self.app_id_for(table),
            "spark.databricks.delta.write.txnVersion": str(self.version),
        }
