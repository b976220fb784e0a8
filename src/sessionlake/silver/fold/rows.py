"""Keeps the rows of sessions in memory while their messages are judged, for feeds that need them.

A feed needs rows for `keep`, `check`, `expect` and `scope`, and if its decoder class says `needs_rows`. The rows are in
the session's part of the shard's state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.feeds.events import RowDelete, RowUpsert
from sessionlake.feeds.feed import Feed, PresentOrAbsent
from sessionlake.feeds.reader import load_json
from sessionlake.feeds.rows import EffectsOfAppliedChanges, SessionRowsInMemory, decode_rows
from sessionlake.integrity.outcome import IntegrityEventKind
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.integrity.shard_batch import RowChangesOutcome
from sessionlake.protocol.arrow import concatenate_ranges, convert_to_contiguous_array
from sessionlake.protocol.chunk import (
    ExpectedRowPresence,
    RowChangeKind,
    build_change_fields,
    build_set_flag_name,
    build_value_field_name,
)
from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import NO_SEQ, MessageType
from sessionlake.protocol.types import Int64s

_PRESENCE = {
    None: None,
    ExpectedRowPresence.PRESENT: PresentOrAbsent.PRESENT,
    ExpectedRowPresence.ABSENT: PresentOrAbsent.ABSENT,
}


@dataclass
class SessionRowsOfShardBatch:
    """The rows of the sessions in one shard's batch.

    Attributes:
        messages: The messages, in the order of the outcome.
        topics: Topic of each session.
        rules: Looks up the feed of a topic.
        columns: The declared columns.
        applied: By message index, what was applied in addition to the feed's own changes: ids of rows that were removed
            before and after them, and values that the decoder has completed.
    """

    messages: pa.Table
    topics: Sequence[str]
    rules: JudgingRuleLookup
    columns: tuple[Column, ...]
    applied: dict[int, EffectsOfAppliedChanges] = field(default_factory=dict)

    def load_session_rows(self, session_number: int, stored: bytes | None) -> LoadedSessionRows:
        """Decodes the stored rows of a session, so that its messages can be applied to them.

        Args:
            session_number: The session's number in the batch.
            stored: The rows as they were encoded in the state; None if there are none.
        """
        feed = self.rules.find_feed(self.topics[session_number])
        check = None if feed.check is None or feed.check.load is None else feed.check.load()
        return LoadedSessionRows(self, decode_rows(stored, feed, check))

    def read_changes_of_message(
        self, message_index: int, feed: Feed
    ) -> tuple[list[RowUpsert | RowDelete], dict[str, Any] | None]:
        """Returns the changes that a feed has read from a message, and a snapshot's scope (None: the whole table).

        A scope has the values of those columns that name the rows which the snapshot replaces.

        Args:
            message_index: The index of the message.
            feed: The feed of the message's topic.
        """
        start, end = int(self._change_bounds[message_index]), int(self._change_bounds[message_index + 1])
        part = self._changes_of_all_messages.slice(start, end - start)
        kinds, ids = part.field("change").to_pylist(), part.field("row_id").to_pylist()
        expected = part.field("expect").to_pylist()
        places = [place for place, column in enumerate(self.columns) if column.name in feed.columns]
        cells = {
            self.columns[place].name: (
                part.field(build_value_field_name(place)).to_pylist(),
                part.field(build_set_flag_name(place)).to_pylist(),
            )
            for place in places
        }
        changes: list[RowUpsert | RowDelete] = []
        scope = None
        for number, kind in enumerate(kinds):
            values = {name: value[number] for name, (value, is_set) in cells.items() if is_set[number]}
            if kind == RowChangeKind.CLEAR:
                scope = values or None
            elif kind == RowChangeKind.DELETE:
                changes.append(RowDelete((), ids[number], _PRESENCE[expected[number]]))
            else:
                changes.append(RowUpsert((), ids[number], values, None, _PRESENCE[expected[number]]))
        return changes, scope

    def build_applied_messages(self) -> pa.Table:
        """Returns the messages with the changes that were applied.

        They have the values that decoders have completed. Removed rows are deletes in addition to the message's own
        changes, and in place of the clear of a scope.
        """
        if not self.applied:
            return self.messages
        changes, bounds = self._complete_values(), self._change_bounds
        sizes = np.diff(bounds)
        ids: list[str] = []
        places: list[int] = []
        dropped: list[int] = []
        for index in sorted(self.applied):
            found, start, end = self.applied[index], int(bounds[index]), int(bounds[index + 1])
            if found.is_scoped:
                dropped.append(start)
            ids += [*found.removed_before, *found.removed_after]
            places += [start] * len(found.removed_before) + [end] * len(found.removed_after)
            sizes[index] += len(found.removed_before) + len(found.removed_after) - found.is_scoped
        order = np.insert(np.arange(len(changes)), places, len(changes) + np.arange(len(ids)))
        order = order[~np.isin(order, dropped)]
        fields = list(build_change_fields(self.columns))
        both = pa.concat_arrays([changes, _build_delete_changes(ids, fields, len(self.columns))]).take(pa.array(order))
        arrays = {one.name: both.field(one.name) for one in fields}
        arrays["ordinal"] = pa.array(concatenate_ranges(np.zeros(len(sizes), np.int64), sizes).astype(np.int32))
        struct = pa.StructArray.from_arrays([arrays[one.name] for one in fields], fields=fields)
        offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32))
        place = self.messages.schema.get_field_index("changes")
        nested = pa.ListArray.from_arrays(offsets, struct)
        return self.messages.set_column(place, self.messages.schema.field(place), nested)

    def _complete_values(self) -> pa.StructArray:
        """Returns all changes with the values that decoders have completed."""
        changes = self._changes_of_all_messages
        kinds = changes.field("change").to_numpy()
        cells: defaultdict[str, dict[int, Any]] = defaultdict(dict)
        for index, found in self.applied.items():
            first = int(self._change_bounds[index])
            first += bool(found.completed) and kinds[first] == RowChangeKind.CLEAR
            for number, values in found.completed.items():
                for name, value in values.items():
                    cells[name][first + number] = value
        if not cells:
            return changes
        fields = list(build_change_fields(self.columns))
        arrays = {one.name: changes.field(one.name) for one in fields}
        names = {column.name: build_value_field_name(place) for place, column in enumerate(self.columns)}
        for name, found_cells in cells.items():
            before = arrays[names[name]]
            order = np.arange(len(changes))
            order[[*found_cells]] = len(changes) + np.arange(len(found_cells))
            added = pa.array([*found_cells.values()], before.type)
            arrays[names[name]] = pa.concat_arrays([before, added]).take(pa.array(order))
        return pa.StructArray.from_arrays([arrays[one.name] for one in fields], fields=fields)

    @cached_property
    def _change_lists(self) -> pa.ListArray:
        return convert_to_contiguous_array(self.messages["changes"])

    @cached_property
    def _change_bounds(self) -> Int64s:
        """The index of each message's first change, and as the last value the number of changes."""
        offsets = self._change_lists.offsets.to_numpy().astype(np.int64)
        return offsets - offsets[0]

    @cached_property
    def _changes_of_all_messages(self) -> pa.StructArray:
        return self._change_lists.flatten()


@dataclass
class LoadedSessionRows:
    """The rows of one session in memory, to which its messages are applied. Implements `SessionRows`.

    Attributes:
        batch: The rows of all sessions of the batch.
        rows: The rows of this session.
    """

    batch: SessionRowsOfShardBatch
    rows: SessionRowsInMemory

    def apply_message_to_rows(self, index: int) -> RowChangesOutcome:
        """Applies the changes of a message to the rows. `index` is the index of the message in the outcome."""
        messages, feed = self.batch.messages, self.rows.feed
        changes, scope = self.batch.read_changes_of_message(index, feed)
        sent = messages["sent"][index].as_py()
        clears = messages["type"][index].as_py() == MessageType.SNAPSHOT or scope is not None
        found = self.rows.apply_changes(
            changes,
            clears=clears,
            scope=scope,
            sent_checksum=None if sent is None else load_json(sent.encode(), numbers_as_text=feed.needs_digits),
        )
        if found.removed_before or found.removed_after or found.is_scoped or found.completed:
            self.batch.applied[index] = found
        added = len(found.removed_before) + len(found.removed_after) - found.is_scoped
        failed = [IntegrityEventKind.ROW_LIMIT] * found.is_too_large + [
            IntegrityEventKind.PRESENCE
        ] * found.presence_failed
        return RowChangesOutcome(added, found.checks, failed + [IntegrityEventKind.CHECKSUM] * found.checksum_failed)

    def encode_rows(self) -> bytes:
        """Encodes the rows for the stored state."""
        return self.rows.encode_rows()


def replace_message_seqs(messages: pa.Table, seqs: Mapping[int, int]) -> pa.Table:
    """Returns the messages with new seqs. `seqs` has the new seq by the message's index."""
    if not seqs:
        return messages
    place, found = messages.schema.get_field_index("seq"), messages["seq"].to_pylist()
    for index, seq in seqs.items():
        found[index] = None if seq == NO_SEQ else seq
    return messages.set_column(place, messages.schema.field(place), pa.array(found, pa.int64()))


def _build_delete_changes(ids: Sequence[str], fields: Sequence[pa.Field], column_count: int) -> pa.StructArray:
    """Returns changes that delete the rows with these ids. `fields` are the fields of a change."""
    arrays = {
        "change": pa.array(np.full(len(ids), RowChangeKind.DELETE, np.int8)),
        "row_id": pa.array(ids, pa.string()),
        **{build_set_flag_name(place): pa.array(np.zeros(len(ids), np.bool_)) for place in range(column_count)},
    }
    return pa.StructArray.from_arrays(
        [arrays.get(one.name, pa.nulls(len(ids), one.type)) for one in fields], fields=list(fields)
    )
