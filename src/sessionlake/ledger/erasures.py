"""Sessions that were forgotten, in `bronze.erasures`: a receipt each, which knows the session by a hash alone.

What is erased is known as long as the table is there, so that a message of such a session that comes later, or is read
from Kafka once more, is erased as it arrives. The hash is salted; all receipts of a lake have the same salt, so that a
message is hashed once however many there are. Who has a list of possible ids can find out which were forgotten.
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

from sessionlake.delta.commit import replace_claimed
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ERASURES, FORGET_CLAIM
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.session_rows import ERASED_VALUES
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1
CLAIM = FORGET_CLAIM
"""What whoever forgets a session claims."""
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
class Erasure:
    """One session's receipt.

    Attributes:
        session_hash: SHA-256 of salt, topic, a NUL and the session's id, in hexadecimal.
        salt: in hexadecimal.
        done_at: None until all of it is done.
        messages: how many messages of bronze were erased.
        report: what was done where, see `operations.forgetting.receipt`.
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
    def removed(self) -> dict[str, int]:
        """How many rows went, by table."""
        return {table: told["rows"] for table, told in self.report.get("tables", {}).items() if told["rows"]}

    def is_for(self, topic: str, session: str) -> bool:
        """Whether it is this session's."""
        return self.session_hash == session_hash_of(self.salt, topic, session)


def session_hash_of(salt: str, topic: str, session: str) -> str:
    """What a receipt knows a session by."""
    return hashlib.sha256(bytes.fromhex(salt) + topic.encode() + b"\0" + session.encode()).hexdigest()


def read_receipts(reader: TableReader) -> list[Erasure]:
    """All receipts, in the order in which they were begun.

    Raises:
        LakeError: they were written by a later version.
    """
    if not reader.exists(ERASURES):
        return []
    rows = reader.table(ERASURES).cast(_SCHEMA).to_pylist()
    if any(row.pop("format") != FORMAT for row in rows):
        raise LakeError(f"{ERASURES} is of another format than {FORMAT}: a later version of sessionlake has written it")
    found = [Erasure(**row | {"report": json.loads(row["report"])}) for row in rows]
    return sorted(found, key=lambda erasure: (erasure.begun_at, erasure.receipt))


def store_receipt(spark: SparkSession, lake: Lake, erasure: Erasure) -> None:
    """Puts a receipt among the others, in the place of an earlier state of it. `CLAIM` must be held."""
    others = [other for other in read_receipts(lake.reader(spark)) if other.receipt != erasure.receipt]
    _replace(spark, lake, [*others, erasure])


def _replace(spark: SparkSession, lake: Lake, receipts: Iterable[Erasure]) -> None:
    rows = [asdict(one) | {"report": json.dumps(one.report), "format": FORMAT} for one in receipts]
    replace_claimed(spark, lake, ERASURES, pa.Table.from_pylist(rows, _SCHEMA))


def delete_receipt(spark: SparkSession, lake: Lake, receipt: str) -> None:
    """Removes the receipt of an erasure that was given up before anything was erased. `CLAIM` must be held."""
    known = read_receipts(lake.reader(spark))
    left = [one for one in known if one.receipt != receipt]
    if len(left) < len(known):
        _replace(spark, lake, left)


def lake_salt(known: Iterable[Erasure]) -> str:
    """The lake's salt; a new one if there is none yet."""
    return next((erasure.salt for erasure in known), None) or secrets.token_hex(_SALT_BYTES)


def erase_forgotten(messages: DataFrame, known: Iterable[Erasure]) -> DataFrame:
    """Messages as `bronze.messages` has them, those of forgotten sessions as erased ones."""
    from pyspark.sql import functions as F

    by_salt: dict[str, list[str]] = {}
    for erasure in known:
        by_salt.setdefault(erasure.salt, []).append(erasure.session_hash)
    for salt, hashes in by_salt.items():
        whole = F.concat(F.lit(bytearray.fromhex(salt)), F.encode("topic", "UTF-8"), F.lit(bytearray(1)), "key")
        gone = F.coalesce(F.sha2(whole, 256).isin(hashes), F.lit(col=False))
        held = {name: None if value is None else bytearray(value) for name, value in ERASED_VALUES.items()}
        messages = messages.withColumns(
            {name: F.when(gone, F.lit(value)).otherwise(F.col(name)) for name, value in held.items()}
        )
    return messages
