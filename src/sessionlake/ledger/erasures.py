"""Receipts of forgotten sessions, in `bronze.erasures`. A receipt identifies its session only by a salted hash.

Bronze uses the receipts to erase messages of a forgotten session that arrive later or are read from Kafka again. All
receipts of a lake share one salt, so bronze hashes each message only once. The hash is no secret to a person who has a
list of possible session ids: hashing each of them shows which were forgotten.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.commit import replace_rows_as_claim_holder
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ERASURES, FORGET_CLAIM
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.session_rows import ERASED_VALUES
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
CLAIM = FORGET_CLAIM
"""Name of the claim (exclusive lock) that a process holds while it forgets a session."""
_SALT_BYTES = 16
_TIME = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [
        ("receipt", pa.string()),
        ("topic", pa.string()),
        ("session_hash", pa.string()),
        ("salt", pa.string()),
        ("begun_at", _TIME),
        ("done_at", _TIME),
        ("messages", pa.int64()),
        ("report", pa.string()),
        ("format", pa.int32()),
    ]
)


@dataclass(frozen=True)
class ErasureReceipt:
    """The receipt for one forgotten session: a row of `bronze.erasures`. It does not contain the session's id.

    Attributes:
        receipt: the receipt's number.
        topic: Kafka topic of the session.
        session_hash: SHA-256 of salt, topic, a zero byte and the session's id, in hexadecimal.
        salt: salt of the hash, in hexadecimal.
        begun_at: wall-clock time at which forgetting began.
        done_at: wall-clock time at which forgetting was complete; None until then.
        messages: number of messages erased in `bronze.messages`.
        report: what was removed from each table and found elsewhere, as `operations.forgetting.receipt` builds it.
    """

    receipt: str
    topic: str
    session_hash: str
    salt: str
    begun_at: datetime
    done_at: datetime | None = None
    messages: int = 0
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def removed_rows_by_table(self) -> dict[str, int]:
        """Number of rows that forgetting the session removed from each table.

        Tables without removed rows are left out.
        """
        return {table: counts["rows"] for table, counts in self.report.get("tables", {}).items() if counts["rows"]}

    def is_for_session(self, topic: str, session_id: str) -> bool:
        """True if the receipt is for the session with this topic and session id."""
        return self.session_hash == hash_forgotten_session(self.salt, topic, session_id)


def hash_forgotten_session(salt: str, topic: str, session_id: str) -> str:
    """Returns the hash that a receipt has instead of the session's id: SHA-256 in hexadecimal.

    Args:
        salt: the salt in hexadecimal.
        topic: Kafka topic of the session.
        session_id: the session's id.
    """
    return hashlib.sha256(bytes.fromhex(salt) + topic.encode() + b"\0" + session_id.encode()).hexdigest()


def read_erasure_receipts(reader: TableReader) -> list[ErasureReceipt]:
    """Returns the receipts of all forgotten sessions, in the order in which forgetting began.

    Raises:
        LakeError: a later version of sessionlake wrote them.
    """
    if not reader.exists(ERASURES):
        return []
    rows = reader.read_arrow_table(ERASURES).cast(_SCHEMA).to_pylist()
    if any(row.pop("format") != FORMAT for row in rows):
        raise LakeError(
            f"{ERASURES} has a format other than {FORMAT}, which this version of sessionlake cannot read",
            why="A later version of sessionlake wrote it",
            fix="Use that later version of sessionlake",
        )
    found = [ErasureReceipt(**row | {"report": json.loads(row["report"])}) for row in rows]
    return sorted(found, key=lambda erasure: (erasure.begun_at, erasure.receipt))


def read_erasure_receipts_to_apply(lake: Lake, spark: SparkSession) -> list[ErasureReceipt]:
    """Returns the receipts by which bronze erases messages on arrival.

    With feeds there are none: a Kafka key is no session id then, and its message may have other sessions.
    """
    return [] if lake.settings.capture.feeds else read_erasure_receipts(lake.reader(spark))


def store_erasure_receipt(spark: SparkSession, lake: Lake, erasure: ErasureReceipt) -> None:
    """Writes a receipt to `bronze.erasures`, in place of a stored receipt with the same number.

    The caller must hold `CLAIM`.
    """
    others = [other for other in read_erasure_receipts(lake.reader(spark)) if other.receipt != erasure.receipt]
    _replace_erasure_receipts(spark, lake, [*others, erasure])


def _replace_erasure_receipts(spark: SparkSession, lake: Lake, receipts: Iterable[ErasureReceipt]) -> None:
    rows = [asdict(one) | {"report": json.dumps(one.report), "format": FORMAT} for one in receipts]
    replace_rows_as_claim_holder(spark, lake, ERASURES, pa.Table.from_pylist(rows, _SCHEMA))


def delete_erasure_receipt(spark: SparkSession, lake: Lake, receipt: str) -> None:
    """Deletes a receipt of which nothing was erased yet, because the operator cancelled.

    The caller must hold `CLAIM`.
    """
    known = read_erasure_receipts(lake.reader(spark))
    left = [one for one in known if one.receipt != receipt]
    if len(left) < len(known):
        _replace_erasure_receipts(spark, lake, left)


def choose_erasure_salt(receipts: Iterable[ErasureReceipt]) -> str:
    """Returns the salt of all receipts of the lake, in hexadecimal; a new random one if there is no receipt yet."""
    return next((erasure.salt for erasure in receipts), None) or secrets.token_hex(_SALT_BYTES)


def erase_forgotten_messages(messages: DataFrame, receipts: Iterable[ErasureReceipt]) -> DataFrame:
    """Returns the messages with key, value and headers erased where the message belongs to a forgotten session.

    Args:
        messages: rows with the columns of `bronze.messages`.
        receipts: the receipts of the forgotten sessions.
    """
    from pyspark.sql import functions as F

    by_salt: dict[str, list[str]] = {}
    for erasure in receipts:
        by_salt.setdefault(erasure.salt, []).append(erasure.session_hash)
    for salt, hashes in by_salt.items():
        salted = F.concat(F.lit(bytearray.fromhex(salt)), F.encode("topic", "UTF-8"), F.lit(bytearray(1)), "key")
        gone = F.coalesce(F.sha2(salted, 256).isin(hashes), F.lit(col=False))
        held = {name: None if value is None else bytearray(value) for name, value in ERASED_VALUES.items()}
        messages = messages.withColumns(
            {name: F.when(gone, F.lit(value)).otherwise(F.col(name)) for name, value in held.items()}
        )
    return messages
