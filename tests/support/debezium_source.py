"""A table in SQLite, and the messages that Debezium's PostgreSQL connector would send for its changes.

The rows are the truth with which a feed's table is compared. The messages are made here from the statements and from
what SQLite answers, without any code of the project.
"""

from __future__ import annotations

import base64
import json
import random
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

PLACEHOLDER = "__debezium_unavailable_value"
LARGE = 40
"""A text of at least this length is stored outside of the row, and not logged by an update that does not set it."""
COLUMNS = ("region", "id", "name", "note", "cents", "changed")
KEYS = ("region", "id")
_REGIONS = ("eu", "us")


@dataclass
class Source:
    """A database with one table, and the messages sent so far.

    Attributes:
        rnd: Chooses statements and values.
        decimals: How the connector writes decimals: precise, string or double.
        schemas: True if messages have their schema, with the envelope in `payload`.
        tombstones: True if each deletion is followed by a message without a value.
        sent: The values of messages, in the order of the log.
        done: Number of statements by kind.
    """

    rnd: random.Random
    decimals: str
    schemas: bool
    tombstones: bool
    sent: list[bytes | None] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.execute(
            "CREATE TABLE orders (region TEXT, id INTEGER, name TEXT, note TEXT, cents INTEGER, changed INTEGER,"
            " PRIMARY KEY (region, id))"
        )
        self._lsn = 0

    def rows(self) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """The rows of the table, by their key."""
        return {row[:2]: row for row in self._db.execute("SELECT * FROM orders")}

    def take_snapshot(self) -> None:
        """Fills the table before the connector starts, and sends its rows as the initial snapshot does."""
        for _ in range(self.rnd.randrange(4)):
            self._db.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?, ?, ?)", self._row())
        for row in self.rows().values():
            self._send("r", None, self._after(row))

    def transact(self) -> None:
        """Runs a transaction of random statements. Its messages are sent if it commits."""
        before, done = len(self.sent), self.done.copy()
        self._db.execute("BEGIN")
        for _ in range(self.rnd.randrange(1, 5)):
            statement = self.rnd.choices(
                (self._insert, self._update, self._move, self._delete, self._truncate), (6, 8, 3, 3, 0.4)
            )[0]
            statement()
        if self.rnd.random() < 0.15:
            self._db.execute("ROLLBACK")
            del self.sent[before:]
            self.done = done + Counter(["rollback"])
        else:
            self._db.execute("COMMIT")

    def _row(self) -> tuple[Any, ...]:
        changed = self.rnd.choice([None, self.rnd.randrange(-(10**15), 2 * 10**15)])
        cents = self.rnd.choice([None, 0, self.rnd.randrange(-(10**9), 10**9)])
        return (*self._key(), self.rnd.choice([None, "", "ü", "b"]), self._note(), cents, changed)

    def _key(self) -> tuple[str, int]:
        return self.rnd.choice(_REGIONS), self.rnd.randrange(6)

    def _note(self) -> str | None:
        return self.rnd.choice([None, "short", f"{self.rnd.random()}" * 10])

    def _existing(self) -> tuple[Any, ...] | None:
        rows = list(self.rows().values())
        return self.rnd.choice(rows) if rows else None

    def _insert(self) -> None:
        row = self._row()
        if row[:2] in self.rows():
            return
        self._db.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", row)
        self._send("c", None, self._after(row))
        self.done["insert"] += 1

    def _update(self) -> None:
        old = self._existing()
        if old is None:
            return
        new = {name: value for name, value in zip(COLUMNS[2:], self._row()[2:], strict=True) if self.rnd.random() < 0.5}
        for name, value in new.items():
            self._db.execute(f"UPDATE orders SET {name} = ? WHERE region = ? AND id = ?", (value, *old[:2]))  # noqa: S608 - the names are the test's
        after = self._after(self.rows()[old[:2]])
        if "note" not in new and len(old[3] or "") >= LARGE:
            after["note"] = PLACEHOLDER
            self.done["unsent"] += 1
        self._send("u", None, after)
        self.done["update"] += 1

    def _move(self) -> None:
        """Changes a row's key. A large text is set in the same statement, because its value would be unknown."""
        old, key = self._existing(), self._key()
        if old is None or key in self.rows():
            return
        note = "moved" if len(old[3] or "") >= LARGE else old[3]
        self._db.execute(
            "UPDATE orders SET region = ?, id = ?, note = ? WHERE region = ? AND id = ?", (*key, note, *old[:2])
        )
        self._send_deletion(old)
        self._send("c", None, self._after(self.rows()[key]))
        self.done["move"] += 1

    def _delete(self) -> None:
        old = self._existing()
        if old is None:
            return
        self._db.execute("DELETE FROM orders WHERE region = ? AND id = ?", old[:2])
        self._send_deletion(old)
        self.done["delete"] += 1

    def _truncate(self) -> None:
        self._db.execute("DELETE FROM orders")
        self._send("t", None, None)
        self.done["truncate"] += 1

    def _send_deletion(self, old: tuple[Any, ...]) -> None:
        """Sends a deletion. Only the key is logged, as with the default replica identity."""
        self._send("d", dict.fromkeys(COLUMNS) | dict(zip(KEYS, old, strict=False)), None)
        if self.tombstones:
            self.sent.append(None)

    def _after(self, row: tuple[Any, ...]) -> dict[str, Any]:
        found = dict(zip(COLUMNS, row, strict=True))
        cents = found.pop("cents")
        return found | {"cents": None if cents is None else self._decimal(cents)}

    def _decimal(self, cents: int) -> Any:
        if self.decimals == "precise":
            size = (cents if cents >= 0 else -cents - 1).bit_length() // 8 + 1
            return base64.b64encode(cents.to_bytes(size, "big", signed=True)).decode()
        text = f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02}"
        return text if self.decimals == "string" else float(text)

    def _send(self, op: str, before: Any, after: Any) -> None:
        self._lsn += self.rnd.choice([-3, 0, 1, 5])  # positions fall and repeat
        source = {"connector": "postgresql", "lsn": self._lsn, "ts_ms": 1_700_000_000_000, "snapshot": str(op == "r")}
        found = {"op": op, "source": source, "ts_ms": 1_700_000_000_001, "before": before, "after": after}
        if self.schemas:
            found = {"schema": {"type": "struct", "fields": []}, "payload": found}
        self.sent.append(json.dumps(found).encode())
