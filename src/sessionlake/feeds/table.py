"""Defines the table of a feed's session: its events are applied one by one, in the order of arrival.

The table is held in memory, without Spark. Silver must produce the same rows of a session that is never broken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from sessionlake.feeds.completion import DecoderRowCompleter
from sessionlake.feeds.events import RowDelete, RowUpsert, SessionEvent
from sessionlake.feeds.feed import EventKind, Feed, PresentOrAbsent, RowLimitPerGroup

Row = dict[str, Any]
Groups = Mapping[tuple[Any, ...], Sequence[Row]]
"""For each group of `Feed.keep`, by its values in the columns `per`: its first rows, best first."""
CheckFunction = Callable[[Groups, Any], bool]


@dataclass
class SessionTable:
    """The table of one session, and counts of its events.

    Attributes:
        feed: The feed that has read the events.
        check: The user's function that checks a checksum; None to check none.
        rows: Rows by row id, in the order in which they were inserted.
        last_seq: Seq of the last applied event that has one; None before the first.
        messages: Number of applied events.
        gaps: Number of events before which events are missing.
        duplicates: Number of events that were dropped because their seq was already applied. Heartbeats do not count.
        checks: Number of checked checksums.
        checks_failed: Number of checksums that did not fit the table.
        presence_failed: Number of changes whose row was present although `expect` says absent, or the reverse, and of
            failures of the decoder's `complete` and `narrow`.
        held: Events that wait for the first snapshot, at most `feed.hold`, in order of arrival.
        unapplied: Number of events that waited for the first snapshot in vain: there were too many, or an end came.
        has_snapshot: True once a snapshot was applied.
    """

    feed: Feed
    check: CheckFunction | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    last_seq: int | None = None
    messages: int = 0
    gaps: int = 0
    duplicates: int = 0
    checks: int = 0
    checks_failed: int = 0
    presence_failed: int = 0
    held: list[SessionEvent] = field(default_factory=list)
    unapplied: int = 0
    has_snapshot: bool = False

    @cached_property
    def _decoder_completer(self) -> DecoderRowCompleter:
        return DecoderRowCompleter.create_for_feed(self.feed)

    def apply_event(self, event: SessionEvent) -> None:
        """Applies an event, unless it is a duplicate, or waits for the first snapshot."""
        if self.feed.hold and not self.has_snapshot and event.kind is not EventKind.SNAPSHOT:
            self.held.append(event)
            most = 0 if event.kind is EventKind.END else self.feed.hold
            while len(self.held) > most:
                self.held.pop(0)
                self.unapplied += 1
            return
        self._apply_event_now(event)
        if event.kind is EventKind.SNAPSHOT:
            self.has_snapshot = True
            held, self.held = self.held, []
            for waiting in held:
                self._apply_event_now(waiting)

    def _apply_event_now(self, event: SessionEvent) -> None:
        """Applies an event that does not wait, unless it is a duplicate, and counts it."""
        if not self._advance_seq_unless_duplicate(event):
            return
        self.messages += 1
        if event.kind is EventKind.SNAPSHOT:
            scope, has_failed = (
                self._decoder_completer.narrow_snapshot_scope(event.scope, self.rows) if event.scope else ({}, False)
            )
            self.presence_failed += has_failed
            if scope is not None:
                self.rows = {name: row for name, row in self.rows.items() if not _is_in_scope(row, scope)}
        seen: set[str] = set()
        for row in event.rows:
            self._apply_row_change(row, sets_all=event.kind is EventKind.SNAPSHOT and row.row_id not in seen)
            seen.add(row.row_id)
        if self.feed.keep is not None:
            for name in _find_ids_of_excess_rows(self.feed.keep, self.rows):
                del self.rows[name]
        if self.check is not None and self.feed.check is not None and event.sent is not None:
            self.checks += 1
            self.checks_failed += not self.check(build_row_groups_for_checksum(self.feed, self.rows), event.sent)

    def _advance_seq_unless_duplicate(self, event: SessionEvent) -> bool:
        """Returns False if the event is a duplicate. Otherwise advances `last_seq`, and counts a gap before it."""
        last, after = self.last_seq, event.after
        if event.seq is None or event.chain is not None:
            return True
        if last is not None and not event.restart and self.feed.order.modulo is not None:
            return self._advance_wrapping_seq_unless_duplicate(event, last, event.seq, self.feed.order.modulo)
        if last is not None and not event.restart:
            if event.seq <= last:
                self.duplicates += event.kind is not EventKind.HEARTBEAT
                return False
            self.gaps += after is not None and (after != last if event.is_link else after > last)
        self.last_seq = event.seq
        return True

    def _advance_wrapping_seq_unless_duplicate(self, event: SessionEvent, last_seq: int, seq: int, modulo: int) -> bool:
        """Returns False if the event is a duplicate, by a counter that starts again at 0 after `modulo - 1`.

        Otherwise advances `last_seq`, and counts a gap before it. Up to half of the circle ahead of `last_seq` is new.
        """
        steps = (seq - last_seq) % modulo
        if not 0 < steps <= modulo // 2:
            self.duplicates += event.kind is not EventKind.HEARTBEAT
            return False
        self.gaps += event.after is not None and steps > (seq - event.after) % modulo
        self.last_seq = seq
        return True

    def _apply_row_change(self, row: RowUpsert | RowDelete, *, sets_all: bool) -> None:
        """Applies the change of a row. With `sets_all`, columns that it leaves out become null."""
        found = self.rows.get(row.row_id)
        if row.expect is not None and (found is not None) != (row.expect is PresentOrAbsent.PRESENT):
            self.presence_failed += 1
        if isinstance(row, RowDelete):
            self.rows.pop(row.row_id, None)
            return
        values = dict.fromkeys(self.feed.columns) | row.values if sets_all else row.values
        completed, has_failed = self._decoder_completer.complete_row_values(values, self.rows)
        self.presence_failed += has_failed
        self.rows[row.row_id] = (dict.fromkeys(self.feed.columns) if found is None else found) | values | completed


def build_row_groups_for_checksum(feed: Feed, rows: Mapping[str, Row]) -> Groups:
    """Returns the rows that the function of `feed.check` receives, by group.

    Without `feed.keep` there is one group `()`, sorted by row id. Each group has at most `feed.check.rows` rows. The
    groups are sorted by the row ids of their best rows.
    """
    most = 0 if feed.check is None else feed.check.rows
    if feed.keep is None:
        return {(): [rows[name] for name in sorted(rows)][:most]}
    groups = sorted(_sort_rows_of_each_group(feed.keep, rows), key=_get_best_row_id)
    return {group: [rows[name] for name in names[:most]] for group, names in groups}


def _get_best_row_id(group: tuple[Any, Sequence[str]]) -> str:
    return group[1][0]


def _is_in_scope(row: Row, scope: Mapping[str, Any]) -> bool:
    """Returns True if the row has all values of the scope."""
    return all(row[name] == value for name, value in scope.items())


def _sort_rows_of_each_group(
    row_limit: RowLimitPerGroup, rows: Mapping[str, Row]
) -> Iterator[tuple[tuple[Any, ...], list[str]]]:
    """Yields each group with its row ids, best first.

    Rows with the same value in the column `row_limit.best` are sorted by row id, those with null come last.
    """
    groups: defaultdict[tuple[Any, ...], list[str]] = defaultdict(list)
    for name, row in rows.items():
        groups[tuple(row[column] for column in row_limit.per)].append(name)
    for group, names in groups.items():
        valued = [name for name in names if rows[name][row_limit.best] is not None]
        valued.sort(
            key=partial(_build_row_sort_key, rows, row_limit.best), reverse=row_limit.sorts_group_descending(group)
        )
        yield group, valued + sorted(name for name in names if rows[name][row_limit.best] is None)


def _build_row_sort_key(rows: Mapping[str, Row], column: str, row_id: str) -> tuple[Any, str]:
    """Returns a key that sorts rows by the value of a column, then by row id."""
    return rows[row_id][column], row_id


def _find_ids_of_excess_rows(row_limit: RowLimitPerGroup, rows: Mapping[str, Row]) -> list[str]:
    """Returns the ids of the rows that exceed the limit of their group."""
    return [name for _, names in _sort_rows_of_each_group(row_limit, rows) for name in names[row_limit.rows :]]
