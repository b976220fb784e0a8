"""Rows of a session that silver keeps in memory, for feeds whose `keep`, `check`, `expect` or `scope` need them.

`feeds.table` defines the same in plain form; tests compare both.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property, lru_cache
from types import GenericAlias, MappingProxyType
from typing import Any, NamedTuple, Optional

import msgspec

from sessionlake.feeds.completion import DecoderRowCompleter
from sessionlake.feeds.events import RowDelete, RowUpsert
from sessionlake.feeds.feed import Feed, PresentOrAbsent
from sessionlake.protocol.columns import INTEGER_BITS

MAX_ROWS = 100_000
"""Most rows of a session that are kept in memory. With `keep`, two full groups may be kept even if they are larger."""
Row = dict[str, Any]
CheckFunction = Callable[[Mapping[tuple[Any, ...], Sequence[Row]], Any], bool]


class EffectsOfAppliedChanges(NamedTuple):
    """What the changes of one message caused, other than the changes themselves.

    Attributes:
        removed_before: Ids of the rows that a snapshot with a scope removes before its own rows are set.
        removed_after: Ids of the rows that exceed the limit of `keep`, and are removed after the changes.
        checks: Number of checksums and expectations that were compared, and of failures of `complete` and `narrow`.
        checksum_failed: True if the checksum does not fit the rows.
        presence_failed: Number of changes whose row was present although the feed expects it absent, or the reverse,
            and of failures of the decoder's `complete` and `narrow`.
        is_too_large: True if there are now too many rows to keep in memory.
        is_scoped: True if the message is a snapshot with a scope.
        completed: By number of the change: values that replace those of the message, as the feed's decoder completed
            them.
    """

    removed_before: tuple[str, ...] = ()
    removed_after: tuple[str, ...] = ()
    checks: int = 0
    checksum_failed: bool = False
    presence_failed: int = 0
    is_too_large: bool = False
    is_scoped: bool = False
    completed: Mapping[int, Row] = MappingProxyType({})


@dataclass
class SessionRowsInMemory:
    """The rows of one session.

    Attributes:
        feed: The feed that reads the session's messages.
        check: Compares a checksum with the rows; None if the feed has no checksum.
        rows: Rows by row id.
        is_known: False if the rows are not in memory because there were too many. The next snapshot sets them again.
    """

    feed: Feed
    check: CheckFunction | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    is_known: bool = True
    _groups: dict[tuple[Any, ...], list[tuple[Any, str]]] = field(default_factory=dict, repr=False)
    """With `keep`: for each group, value of the column `best` and id of its rows, ascending."""

    def __post_init__(self) -> None:
        if self.feed.keep is not None:
            for row_id, row in self.rows.items():
                self._add_row_to_group(row_id, row)

    def apply_changes(
        self,
        changes: Iterable[RowUpsert | RowDelete],
        *,
        clears: bool = False,
        scope: Row | None = None,
        sent_checksum: Any = None,
    ) -> EffectsOfAppliedChanges:
        """Applies the changes of one message.

        Args:
            changes: The changes, in order.
            clears: True if the message is a snapshot, which removes all rows first, or those in its scope.
            scope: Values by column of a snapshot's scope; None if it replaces all rows.
            sent_checksum: The checksum in the message; None if there is none.
        """
        if clears and not scope:
            self.rows, self._groups, self.is_known = {}, {}, True
        if not self.is_known:
            return EffectsOfAppliedChanges(is_too_large=bool(scope), is_scoped=bool(scope))
        changes = list(changes)
        narrowed, has_failed = (
            self._decoder_completer.narrow_snapshot_scope(scope, self.rows) if scope else (None, False)
        )
        removed_before = () if narrowed is None else self._remove_rows_in_scope(changes, narrowed)
        completed: dict[int, Row] = {}
        failures = [self._apply_change(number, change, completed) for number, change in enumerate(changes)]
        undone = has_failed + sum(failed for _, failed in failures)
        presence_failed = undone + sum(failed for failed, _ in failures)
        checks = undone + sum(change.expect is not None for change in changes)
        removed_after = tuple(sorted(self._remove_excess_rows()))  # groups have another order after a restart
        if len(self.rows) > self._max_rows_in_memory:
            self.rows, self._groups, self.is_known = {}, {}, False
            return EffectsOfAppliedChanges(
                removed_before, removed_after, checks, presence_failed=presence_failed, is_too_large=True,
                is_scoped=bool(scope), completed=completed,
            )  # fmt: skip
        failed = sent_checksum is not None and not self._matches_checksum(sent_checksum)
        return EffectsOfAppliedChanges(
            removed_before, removed_after, checks + (sent_checksum is not None), failed, presence_failed,
            is_scoped=bool(scope), completed=completed,
        )  # fmt: skip

    def _remove_rows_in_scope(self, changes: Sequence[RowUpsert | RowDelete], scope: Row) -> tuple[str, ...]:
        """Removes the rows whose values are those of a scope, given by column.

        Returns:
            The ids of the removed rows that the message does not set again.
        """
        set_ids = {change.row_id for change in changes if isinstance(change, RowUpsert)}
        inside = [row_id for row_id, row in self.rows.items() if all(row[name] == scope[name] for name in scope)]
        for row_id in inside:
            self._pop_row(row_id)
        return tuple(row_id for row_id in inside if row_id not in set_ids)

    @property
    def _max_rows_in_memory(self) -> int:
        """Most rows of the session that are kept in memory."""
        return MAX_ROWS if self.feed.keep is None else max(MAX_ROWS, 2 * self.feed.keep.rows)

    @cached_property
    def _decoder_completer(self) -> DecoderRowCompleter:
        return DecoderRowCompleter.create_for_feed(self.feed)

    def _apply_change(self, number: int, change: RowUpsert | RowDelete, completed: dict[int, Row]) -> tuple[bool, bool]:
        """Applies one change.

        Args:
            number: Number of the change in its message.
            change: The change.
            completed: Where values are added that the feed's decoder completed.

        Returns:
            True if the row's presence was not as expected, and True if the decoder failed to complete the values.
        """
        found, has_failed = (
            self._decoder_completer.complete_row_values(change.values, self.rows)
            if isinstance(change, RowUpsert)
            else ({}, False)
        )
        if found:
            completed[number] = found
        known = self._pop_row(change.row_id)
        if isinstance(change, RowUpsert):
            row = {**(dict.fromkeys(self.feed.columns) if known is None else known), **change.values, **found}
            self.rows[change.row_id] = row
            if self.feed.keep is not None:
                self._add_row_to_group(change.row_id, row)
        is_wrong = change.expect is not None and (known is not None) != (change.expect is PresentOrAbsent.PRESENT)
        return is_wrong, has_failed

    def _pop_row(self, row_id: str) -> Row | None:
        """Removes a row and returns it; None if there is no such row."""
        row = self.rows.pop(row_id, None)
        if row is not None and self.feed.keep is not None:
            members, entry = (
                self._get_sorted_group_of_row(row),
                (_build_null_last_sort_key(row[self.feed.keep.best]), row_id),
            )
            del members[bisect_left(members, entry)]
        return row

    def _add_row_to_group(self, row_id: str, row: Row) -> None:
        if self.feed.keep is not None:
            insort(self._get_sorted_group_of_row(row), (_build_null_last_sort_key(row[self.feed.keep.best]), row_id))

    def _get_sorted_group_of_row(self, row: Row) -> list[tuple[Any, str]]:
        """Returns the rows of the group that a row belongs to, as sorted pairs of value and row id."""
        keep = self.feed.keep
        return self._groups.setdefault(tuple(row[name] for name in keep.per) if keep else (), [])

    def _remove_excess_rows(self) -> Iterable[str]:
        """Removes the rows that exceed the limit of their group, and yields their ids."""
        keep = self.feed.keep
        if keep is None:
            return
        for group, members in self._groups.items():
            for row_id in self._list_row_ids_of_group(group, members)[keep.rows :] if len(members) > keep.rows else ():
                self._pop_row(row_id)
                yield row_id

    def _list_row_ids_of_group(
        self, group: tuple[Any, ...], members: list[tuple[Any, str]], most: int | None = None
    ) -> list[str]:
        """Returns the row ids of a group, best first: as `keep` says, by the highest or lowest value. Nulls come last.

        Args:
            group: The values that the group's rows have in the columns `per`.
            members: Pairs of the value in `best` and row id, ascending, nulls last.
            most: Most ids to return; None for all.
        """
        keep = self.feed.keep
        nulls = bisect_left(members, (_NULL_KEY,))
        valued = members[:nulls]
        if keep is not None and keep.sorts_group_descending(group):
            valued = valued[::-1]
        return [row_id for _, row_id in [*valued, *members[nulls:]][:most]]

    def _matches_checksum(self, sent_checksum: Any) -> bool:
        """Returns True if the rows have this checksum. If the check function raises an exception, they do not."""
        check = self.feed.check
        if self.check is None or check is None:
            return True
        if self.feed.keep is None:
            groups = {(): [dict(self.rows[row_id]) for row_id in sorted(self.rows)[: check.rows]]}
        else:
            found = [
                (self._list_row_ids_of_group(group, members, check.rows), group)
                for group, members in self._groups.items()
                if members
            ]
            found.sort(key=_get_first_row_id)  # groups have another order after a restart
            groups = {group: [dict(self.rows[row_id]) for row_id in ids] for ids, group in found}
        try:
            return bool(self.check(groups, sent_checksum))
        except Exception:  # noqa: BLE001 - the function is the user's
            return False

    # -- stored form

    def encode_rows(self) -> bytes:
        """Encodes the rows as bytes that `decode_rows` reads."""
        names = list(self.feed.columns)
        rows = [(row_id, [row[name] for name in names]) for row_id, row in self.rows.items()]
        return msgspec.msgpack.encode(_StoredRows(names, self.is_known, rows))


_NULL_KEY = (1,)
"""Sorts behind every value."""


def _get_first_row_id(group: tuple[Sequence[str], Any]) -> str:
    return group[0][0]


def _build_null_last_sort_key(value: Any) -> tuple[Any, ...]:
    """Returns a key by which values are sorted ascending, null last."""
    return _NULL_KEY if value is None else (0, value)


class _StoredRows(msgspec.Struct, array_like=True):
    """The stored form of the rows of a session: pairs of row id and list of values, in the order of `columns`."""

    columns: list[str]
    is_known: bool
    rows: Any


def decode_rows(stored: bytes | None, feed: Feed, check: CheckFunction | None) -> SessionRowsInMemory:
    """Returns the rows that `SessionRowsInMemory.encode_rows` stored. A column that was declared later is null.

    Args:
        stored: The stored bytes; None for a session without rows.
        feed: The feed that reads the session's messages.
        check: Compares a checksum with the rows; None if the feed has no checksum.
    """
    if stored is None:
        return SessionRowsInMemory(feed, check)
    found = msgspec.msgpack.decode(stored, type=_StoredRows)
    types = tuple(_get_python_type(feed.columns[name].sql) for name in found.columns)
    values: list[tuple[str, tuple[Any, ...]]] = msgspec.convert(found.rows, _build_type_of_stored_rows(types))
    rows = {row_id: dict.fromkeys(feed.columns) | dict(zip(found.columns, row, strict=True)) for row_id, row in values}
    return SessionRowsInMemory(feed, check, rows, found.is_known)


@lru_cache(maxsize=64)
def _build_type_of_stored_rows(value_types: tuple[Any, ...]) -> Any:
    """Returns the type of stored rows: a list of pairs of row id and values, each of which can be null."""
    row = GenericAlias(tuple, tuple(Optional[one] for one in value_types))  # noqa: UP045 - the type is built at run time
    return GenericAlias(list, (GenericAlias(tuple, (str, row)),))


def _get_python_type(sql_type: str) -> Any:
    """Returns the Python type in which values of a column's type are kept."""
    if sql_type.startswith("array<"):
        return GenericAlias(list, (_get_python_type(sql_type.removeprefix("array<").removesuffix(">")) | None,))
    if sql_type.startswith("decimal"):
        return Decimal
    if sql_type in INTEGER_BITS:
        return int
    known = {"boolean": bool, "float": float, "double": float, "date": date, "binary": bytes}
    return datetime if sql_type.startswith("timestamp") else known.get(sql_type, str)
