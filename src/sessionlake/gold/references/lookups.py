"""Runs lookups while gold runs: finds keys in changes that a reference table lacks, and fetches their rows.

The fetched rows are written to the reference table. Enriched tables depend on that table only, so rebuilding them makes
no requests.
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

from sessionlake.delta.commit import merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LOOKUP_FAILURES
from sessionlake.delta.storage.reading import Condition, is_in, is_null
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import ClaimedByOtherProcessError, LakeError
from sessionlake.feeds.values import parse_feed_column
from sessionlake.gold.enrich.reference import ReferenceTable
from sessionlake.gold.enrich.table import BATCH, EnrichedTable, ReferenceJoin, find_joins_with_reference
from sessionlake.gold.enrich.upsert import Key
from sessionlake.gold.references.applied import create_txn_for_reference_commit
from sessionlake.gold.references.lookup import Lookup, LookupFailedError
from sessionlake.gold.references.writing import write_reference_rows
from sessionlake.protocol.columns import is_decimal_type
from sessionlake.protocol.names import DELETE
from sessionlake.protocol.types import Row
from sessionlake.settings.references import LookupSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_PAUSE = timedelta(days=1)
_MAX_DOUBLINGS = 20
# A key without a row in this many answers is no longer requested. With the default pauses this takes about three weeks.
_MAX_UNKNOWN_ANSWERS = 30
_UNKNOWN = "unknown"
# Up to this many values are pushed down as a filter on files.
_MAX_FILTER_VALUES = 1_000
_FAILURE_UPSERT = Upsert(
    ("reference", "key"),
    ("error", "reason", "attempts", "failed_at", "next_try"),
    pruned_by=("reference",),
    deletes=True,
)


def _read_utc_now() -> datetime:
    return datetime.now(UTC)


class LookupRunner:
    """Finds keys that one reference table lacks, fetches their rows with a lookup, and writes them to the table.

    Args:
        spark: a Spark session that nothing else uses.
        reference: the reference table.
        settings: the settings of the lookup.
        lookup: fetches the rows.
        tables: gold's enriched tables. Those that join the reference table are searched for missing keys.
        now: function that returns the current time. The time decides when a request is repeated, and fetched rows are
            valid from it on.

    Attributes:
        name: name of the reference table.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        reference: ReferenceTable,
        settings: LookupSettings,
        lookup: Lookup,
        tables: Sequence[EnrichedTable],
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._spark, self._lake = spark, lake
        self.name = reference.name
        self._reference, self._settings, self._lookup = reference, settings, lookup
        self._joins = find_joins_with_reference(tables, reference)
        self._now = now or _read_utc_now
        # The time at which to request a key again; None: never. The least recently requested keys are dropped first.
        self._next_requests: OrderedDict[Key, datetime | None] = OrderedDict()
        self._queue: OrderedDict[Key, None] = OrderedDict()
        # Silver batches to search for keys: the first and the last. None stands for all batches before the start.
        self._unread_batches: deque[tuple[int, int] | None] = deque([None])

    def schedule_search_of_batches(self, first_batch: int, last_batch: int) -> None:
        """Schedules a search for missing keys in some batches of silver. Any thread may call it."""
        self._unread_batches.append((first_batch, last_batch))

    def request_rows_of_next_keys(self) -> bool:
        """Requests the next keys, as many as the settings allow at once, and writes the answers.

        Returns:
            True if keys were requested and the answers were written.
        """
        if not self._queue:
            self._queue_missing_keys()
        most = self._settings.batch * self._settings.in_flight
        keys = [self._queue.popitem(last=False)[0] for _ in range(min(most, len(self._queue)))]
        if not keys:
            return False
        batches = [keys[i : i + self._settings.batch] for i in range(0, len(keys), self._settings.batch)]
        with ThreadPoolExecutor(self._settings.in_flight, "lookup") as pool:
            found = [*pool.map(self._request_rows_of_keys, batches)]
        failed = {key: why for _, part in found for key, why in part.items()}
        return self._store_answers([row for rows, _ in found for row in rows], failed, keys)

    def _request_rows_of_keys(self, keys: Sequence[Key]) -> tuple[list[Row], dict[Key, tuple[str, str]]]:
        """Requests the rows of some keys.

        Returns:
            The usable rows; and by failed key, the kind of failure and the reason.
        """
        names = self._reference.key_names
        try:
            rows = self._lookup.fetch([dict(zip(names, key, strict=True)) for key in keys])
        except LookupFailedError as error:
            return [], dict.fromkeys(keys, (error.kind, str(error)))
        except Exception as error:  # noqa: BLE001 - user code: its text could contain secrets, so only the type is kept
            return [], dict.fromkeys(keys, ("raised", type(error).__name__))
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            return [], dict.fromkeys(keys, ("answer", "the answer is not a list of dictionaries"))
        used: dict[Key, list[Row]] = {}
        asked, failed = {*keys}, dict[Key, tuple[str, str]]()
        for row in rows:
            key = tuple(row.get(name) for name in names)
            if not all(isinstance(part, str | int) for part in key) or key not in asked:
                continue
            try:
                used.setdefault(key, []).append(_convert_fetched_row(self._reference, row))
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                failed[key] = ("answer", f"the row of this key cannot be used: {error}")
        unknown = (_UNKNOWN, "the answer has no row of this key")
        failed |= {key: unknown for key in keys if key not in used and key not in failed}
        return [row for key, found in used.items() if key not in failed for row in found], failed

    def _store_answers(
        self, fetched_rows: list[Row], failures: dict[Key, tuple[str, str]], keys: Sequence[Key]
    ) -> bool:
        """Writes fetched rows to the reference table, and failures to `gold.lookup_failures`.

        Args:
            fetched_rows: the fetched rows.
            failures: by failed key, the kind of failure and the reason.
            keys: all requested keys.

        Returns:
            False if another process is writing the reference table. Nothing is written then, and the keys are requested
            again later.
        """
        now = self._now()
        try:
            if fetched_rows:
                table = pa.Table.from_pylist(fetched_rows, self._reference.arrow_schema())
                done = write_reference_rows(self._spark, self._lake, self._reference, table, now, skip_refused=True)
                failures |= {key: ("answer", why) for key, why in done.refused.items()}
        except ClaimedByOtherProcessError:  # another process writes the table
            self._queue |= dict.fromkeys(keys)
            return False
        except LakeError as error:  # the table is faulty
            failures = dict.fromkeys(keys, ("table", str(error)))
        before = self._read_lookup_failures_of_keys(keys)
        again = None if self._settings.ttl is None else now + self._settings.ttl
        for key in keys:
            attempts = before[key]["attempts"] if key in before else 0
            if attempts + 1 >= _MAX_UNKNOWN_ANSWERS and failures.get(key, ("",))[0] == _UNKNOWN:
                del failures[key]
            pause = min(self._settings.retry_after * 2 ** min(attempts, _MAX_DOUBLINGS), _MAX_PAUSE)
            self._next_requests[key] = now + pause if key in failures else again
            self._next_requests.move_to_end(key)
        changed = [self._build_lookup_failure_row(key, before.get(key), failures.get(key), now) for key in keys]
        self._write_lookup_failures([row for row in changed if row is not None])
        while len(self._next_requests) > self._settings.cache:
            self._next_requests.popitem(last=False)
        return True

    def _build_lookup_failure_row(
        self, key: Key, stored_failure: Row | None, new_failure: tuple[str, str] | None, now: datetime
    ) -> Row | None:
        """Returns the row with which to update `gold.lookup_failures` for a key; None if there is nothing to update.

        Args:
            key: the key.
            stored_failure: the key's stored failure; None if it has none.
            new_failure: kind and reason of the new failure; None if the request succeeded, which deletes the stored
                row.
            now: the current time.
        """
        if new_failure is None and stored_failure is None:
            return None
        error, reason = new_failure or ("", "")
        return {
            "reference": self._reference.name,
            "key": _encode_key_as_json(key),
            "error": error,
            "reason": reason,
            "attempts": 1 + (stored_failure["attempts"] if stored_failure else 0),
            "failed_at": now,
            "next_try": self._next_requests[key],
            DELETE: new_failure is None,
        }

    def _write_lookup_failures(self, rows: list[Row]) -> None:
        if rows:
            schema = (
                self._lake.reader(self._spark).read_table_schema(LOOKUP_FAILURES).append(pa.field(DELETE, pa.bool_()))
            )
            source = pa.Table.from_pylist(rows, schema)
            txn = create_txn_for_reference_commit(self._spark, self._lake, LOOKUP_FAILURES)
            merge_rows(self._spark, self._lake, LOOKUP_FAILURES, source, _FAILURE_UPSERT, txn)

    def _read_lookup_failures_of_keys(self, keys: Collection[Key]) -> dict[Key, Row]:
        """Returns the stored failures of some keys, which are rows of `gold.lookup_failures`, by key."""
        wanted_keys = {*keys}
        named = (
            [("key", is_in, [*map(_encode_key_as_json, wanted_keys)])] if len(wanted_keys) <= _MAX_FILTER_VALUES else []
        )
        rows = self._read_lookup_failures(*named) if wanted_keys else ()
        return {key: row for row in rows if (key := _decode_key_of_failure_row(row)) in wanted_keys}

    def _read_lookup_failures(self, *conditions: Condition) -> Iterator[Row]:
        """Yields the stored failures of this reference table, which are rows of `gold.lookup_failures`."""
        of_reference = ("reference", operator.eq, self._reference.name)
        return self._lake.reader(self._spark).read_rows(LOOKUP_FAILURES, of_reference, *conditions)

    def _queue_missing_keys(self) -> None:
        """Adds keys to the queue of requests: failed keys whose pause has ended, and missing keys in new changes.

        Each silver batch is searched once. The search stops when the queue has as many keys as the lookup's setting
        `cache` allows.
        """
        now, most = self._now(), self._settings.cache
        due = self._read_lookup_failures(("next_try", operator.le, now))
        self._queue |= dict.fromkeys(islice(map(_decode_key_of_failure_row, due), most))
        while self._unread_batches and len(self._queue) < most:
            batches = self._unread_batches.popleft()
            if batches is None and self._settings.ttl is None:
                self._unread_batches.clear()  # the search of all earlier batches covers them
            named = {key for table, join in self._joins for key in self._read_missing_keys(table, join, batches)}
            found = {key for key in named if self._is_request_due(key, now)}
            self._queue |= dict.fromkeys(found - self._read_lookup_failures_of_keys(found).keys())

    def _read_missing_keys(
        self, table: EnrichedTable, join: ReferenceJoin, batches: tuple[int, int] | None
    ) -> Iterator[Key]:
        """Yields the keys in an enriched table's rows for which the reference table may lack rows.

        Args:
            table: the enriched table.
            join: its join with the reference table.
            batches: the first and the last silver batch to search; None for all batches. If it is None, or keys are
                never requested again (no `ttl`), only rows for which the join found no row are searched.
        """
        conditions: list[Condition] = []
        if batches is not None:
            conditions += [(BATCH, operator.ge, batches[0]), (BATCH, operator.le, batches[1])]
        if batches is None or self._settings.ttl is None:
            conditions.append((join.valid_from_column, is_null, None))
        names = [*dict.fromkeys(join.on)]
        for values in self._lake.reader(self._spark).count_rows_by(table.table_name, names, *conditions):
            row = dict(zip(names, values, strict=True))
            if None not in values:
                yield tuple(row[name] for name in join.on)

    def _is_request_due(self, key: Key, now: datetime) -> bool:
        again = self._next_requests.get(key, now)
        return again is not None and again <= now


def _encode_key_as_json(key: Key) -> str:
    return json.dumps(list(key))


def _decode_key_of_failure_row(row: Row) -> Key:
    return tuple(json.loads(row["key"]))


def _convert_fetched_row(reference: ReferenceTable, row: Row) -> Row:
    """Returns a fetched row with the columns and types of the reference table.

    Raises:
        ValueError: a column is missing, or a value cannot be converted to the column's type.
    """
    if missing := [name for name, _ in reference.columns if name not in row]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    types = dict(reference.all_columns)
    values = {name: _convert_fetched_value(types[name], row.get(name)) for name in reference.column_names}
    return pa.Table.from_pylist([values], reference.arrow_schema()).to_pylist()[0]


def _convert_fetched_value(sql_type: str, value: Any) -> Any:
    """Converts a value of a fetched row to the type of its column.

    Dates and times are ISO 8601 texts, decimals are numbers or texts.

    Args:
        sql_type: the column's Spark SQL type.
        value: the value as the lookup returned it.

    Raises:
        ValueError: The value has another form, or is a time without a time zone.
    """
    if value is not None and (is_decimal_type(sql_type) or sql_type == "timestamp_ntz"):
        how = "text" if is_decimal_type(sql_type) and isinstance(value, str) else None
        return parse_feed_column(sql_type, sql_type, how).convert_python(value)
    if sql_type == "date" and isinstance(value, str):
        return date.fromisoformat(value)
    if sql_type != "timestamp" or value is None:
        return value
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    return moment
