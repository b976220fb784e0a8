"""Lookups beside gold's stream: keys that changes name are asked for, and what comes is put into the reference table.

Enriched tables follow from that table alone: what a lookup brings corrects them as what anybody else writes into it,
and a recomputation asks nobody.
"""

from __future__ import annotations

import json
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.commit import merge
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LOOKUP_FAILURES
from sessionlake.delta.storage.reading import Condition, is_in, is_null
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import ClaimedError, LakeError
from sessionlake.gold.enrich.reference import Reference
from sessionlake.gold.enrich.table import BATCH, Enriched, Join, joins_of
from sessionlake.gold.enrich.upsert import Key
from sessionlake.gold.references.lookup import Lookup, LookupFailedError
from sessionlake.gold.references.taken import next_txn
from sessionlake.gold.references.writing import write_reference
from sessionlake.protocol.names import DELETE
from sessionlake.protocol.types import Row
from sessionlake.settings.references import LookupSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONGEST = timedelta(days=1)
_DOUBLED = 20
# A key that so many answers had no row of is let go of: with the default pauses after some three weeks.
_GIVEN_UP = 30
_UNKNOWN = "unknown"
# Up to so many values are named to the files.
_NAMED = 1_000
_FAILURE = Upsert(
    ("reference", "key"),
    ("error", "reason", "attempts", "failed_at", "next_try"),
    pruned_by=("reference",),
    deletes=True,
)


def _now() -> datetime:
    return datetime.now(UTC)


class Lookups:
    """Asks for what one reference table lacks.

    Args:
        spark: a session of its own.
        tables: those in which the reference table is joined.
        now: the clock: it says when to ask again, and since when holds what an answer says.

    Attributes:
        name: the reference table's.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        reference: Reference,
        settings: LookupSettings,
        lookup: Lookup,
        tables: Sequence[Enriched],
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._spark, self._lake = spark, lake
        self.name = reference.name
        self._reference, self._settings, self._lookup = reference, settings, lookup
        self._joins = joins_of(tables, reference)
        self._now = now or _now
        # Of keys that were asked for, when to ask again; the oldest are forgotten first.
        self._asked: OrderedDict[Key, datetime | None] = OrderedDict()
        self._wanted: OrderedDict[Key, None] = OrderedDict()
        # Silver's batches, from and to, whose changes are to be looked at; None: all those before.
        self._added: deque[tuple[int, int] | None] = deque([None])

    def note(self, first: int, last: int) -> None:
        """Has the changes of these batches of silver's, which were added just now, looked at. Of any thread."""
        self._added.append((first, last))

    def step(self) -> bool:
        """Asks for as many keys as may be in flight; whether there were any, and what came is written down."""
        if not self._wanted:
            self._look()
        most = self._settings.batch * self._settings.in_flight
        keys = [self._wanted.popitem(last=False)[0] for _ in range(min(most, len(self._wanted)))]
        if not keys:
            return False
        batches = [keys[i : i + self._settings.batch] for i in range(0, len(keys), self._settings.batch)]
        with ThreadPoolExecutor(self._settings.in_flight, "lookup") as pool:
            found = [*pool.map(self._fetched, batches)]
        failed = {key: why for _, part in found for key, why in part.items()}
        return self._kept([row for rows, _ in found for row in rows], failed, keys)

    def _fetched(self, keys: Sequence[Key]) -> tuple[list[Row], dict[Key, tuple[str, str]]]:
        """Rows that can be used, and the keys that came to nothing, and why."""
        names = self._reference.key_names
        try:
            rows = self._lookup.fetch([dict(zip(names, key, strict=True)) for key in keys])
        except LookupFailedError as error:
            return [], dict.fromkeys(keys, (error.kind, str(error)))
        except Exception as error:  # noqa: BLE001 - code of one's own: what it says may hold what nobody is to read
            return [], dict.fromkeys(keys, ("raised", type(error).__name__))
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return [], dict.fromkeys(keys, ("answer", "the answer is no list of dictionaries"))
        used: dict[Key, list[Row]] = {}
        asked, failed = {*keys}, dict[Key, tuple[str, str]]()
        for row in rows:
            key = tuple(row.get(name) for name in names)
            if not all(isinstance(part, str | int) for part in key) or key not in asked:
                continue
            try:
                used.setdefault(key, []).append(_checked(self._reference, row))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                failed[key] = ("answer", f"its row cannot be used: {error}")
        unknown = (_UNKNOWN, "the answer has no row of it")
        failed |= {key: unknown for key in keys if key not in used and key not in failed}
        return [row for key, found in used.items() if key not in failed for row in found], failed

    def _kept(self, rows: list[Row], failed: dict[Key, tuple[str, str]], keys: Sequence[Key]) -> bool:
        """Writes down what came; False if that cannot be now: the keys are asked for once more, later."""
        now = self._now()
        try:
            if rows:
                table = pa.Table.from_pylist(rows, self._reference.schema())
                done = write_reference(self._spark, self._lake, self._reference, table, now, partly=True)
                failed |= {key: ("answer", why) for key, why in done.refused.items()}
        except ClaimedError:  # somebody else writes it
            self._wanted |= dict.fromkeys(keys)
            return False
        except LakeError as error:  # it rests
            failed = dict.fromkeys(keys, ("table", str(error)))
        before = self._failures(keys)
        again = None if self._settings.ttl is None else now + self._settings.ttl
        for key in keys:
            attempts = before[key]["attempts"] if key in before else 0
            if attempts + 1 >= _GIVEN_UP and failed.get(key, ("",))[0] == _UNKNOWN:
                del failed[key]
            pause = min(self._settings.retry_after * 2 ** min(attempts, _DOUBLED), _LONGEST)
            self._asked[key] = now + pause if key in failed else again
            self._asked.move_to_end(key)
        changed = [self._failure(key, before.get(key), failed.get(key), now) for key in keys]
        self._note([row for row in changed if row is not None])
        while len(self._asked) > self._settings.cache:
            self._asked.popitem(last=False)
        return True

    def _failure(self, key: Key, before: Row | None, why: tuple[str, str] | None, now: datetime) -> Row | None:
        """A row of `gold.lookup_failures`; None where there was none, and is none."""
        if why is None and before is None:
            return None
        error, reason = why or ("", "")
        return {
            "reference": self._reference.name,
            "key": _text(key),
            "error": error,
            "reason": reason,
            "attempts": 1 + (before["attempts"] if before else 0),
            "failed_at": now,
            "next_try": self._asked[key],
            DELETE: why is None,
        }

    def _note(self, rows: list[Row]) -> None:
        if rows:
            schema = self._lake.reader(self._spark).schema(LOOKUP_FAILURES).append(pa.field(DELETE, pa.bool_()))
            source = pa.Table.from_pylist(rows, schema)
            txn = next_txn(self._spark, self._lake, LOOKUP_FAILURES)
            merge(self._spark, self._lake, LOOKUP_FAILURES, source, _FAILURE, txn)

    def _failures(self, keys: Collection[Key]) -> dict[Key, Row]:
        """What failed last time of these keys."""
        mine = {*keys}
        named = [("key", is_in, [*map(_text, mine)])] if len(mine) <= _NAMED else []
        rows = self._failed(*named) if mine else ()
        return {key: row for row in rows if (key := _key(row)) in mine}

    def _failed(self, *conditions: Condition) -> Iterator[Row]:
        """Rows of `gold.lookup_failures`."""
        mine = ("reference", operator.eq, self._reference.name)
        return self._lake.reader(self._spark).rows(LOOKUP_FAILURES, mine, *conditions)

    def _look(self) -> None:
        """Finds keys that failed and are due, and those that changes have named since the last look.

        Every batch is looked at once, so that each look comes to an end however few keys are remembered; no more of
        them than fill the cache.
        """
        now, most = self._now(), self._settings.cache
        due = self._failed(("next_try", operator.le, now))
        self._wanted |= dict.fromkeys(islice(map(_key, due), most))
        while self._added and len(self._wanted) < most:
            batches = self._added.popleft()
            if batches is None and self._settings.ttl is None:
                self._added.clear()  # their rows are there, and found with those before
            named = {key for table, join in self._joins for key in self._named(table, join, batches)}
            found = {key for key in named if self._is_due(key, now)}
            self._wanted |= dict.fromkeys(found - self._failures(found).keys())

    def _named(self, table: Enriched, join: Join, batches: tuple[int, int] | None) -> Iterator[Key]:
        """Keys that changes of these batches name; of all that were before, those alone that nothing is known of."""
        conditions: list[Condition] = []
        if batches is not None:
            conditions += [(BATCH, operator.ge, batches[0]), (BATCH, operator.le, batches[1])]
        if batches is None or self._settings.ttl is None:
            conditions.append((join.version, is_null, None))
        names = [*dict.fromkeys(join.on)]
        for values in self._lake.reader(self._spark).count_by(table.table, names, *conditions):
            row = dict(zip(names, values, strict=True))
            if None not in values:
                yield tuple(row[name] for name in join.on)

    def _is_due(self, key: Key, now: datetime) -> bool:
        again = self._asked.get(key, now)
        return again is not None and again <= now


def _text(key: Key) -> str:
    return json.dumps(list(key))


def _key(row: Row) -> Key:
    return tuple(json.loads(row["key"]))


def _checked(reference: Reference, row: Row) -> Row:
    """The row as the table has it.

    Raises:
        ValueError: it lacks a column, or a value is of another type.
    """
    if lacking := [name for name, _ in reference.columns if name not in row]:
        raise ValueError(f"it has no {', '.join(lacking)}")
    types = dict(reference.all_columns)
    told = {name: _parsed(types[name], row.get(name)) for name in reference.names}
    return pa.Table.from_pylist([told], reference.schema()).to_pylist()[0]


def _parsed(sql: str, value: Any) -> Any:
    """A value of JSON, or of Python, as a table has it."""
    if sql == "date" and isinstance(value, str):
        return date.fromisoformat(value)
    if sql != "timestamp" or value is None:
        return value
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    return moment
