"""Applies faults between a sensor and Kafka: lost, duplicated, swapped, late and malformed messages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sessionlake_lab.simulate.block import END, FIRST, MessageBlock
from sessionlake_lab.simulate.malformed import ValidMessage, list_malformed_message_variants
from sessionlake_lab.simulate.rows import encode_column_name_as_json
from sessionlake_lab.simulate.scenario import FaultRates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sessionlake.protocol.columns import Column
    from sessionlake_lab.simulate.scenario import KafkaRecord, Scenario

_STRAY = b'{"type":"heartbeat","seq":%d,"ts":%d}'
# Maximum number of ms by which the event time of a reordered message is moved back.
REORDERED_MS = 2000
# A duplicate is written within this many slots after the original.
ECHO = 40
# If the limit is higher than this, a value that exceeds it has megabytes, so there is only one such message per run.
MODEST_BYTES = 100_000


class FaultInjector:
    """Applies a scenario's faults to complete blocks.

    Args:
        scenario: Rates of the faults.
        columns: Declared columns, for malformed values.
        rng: The scenario's only source of randomness.
    """

    def __init__(self, scenario: Scenario, columns: Sequence[Column], rng: np.random.Generator) -> None:
        self._scenario, self._faults, self._rng = scenario, scenario.faults, rng
        self._variants = list_malformed_message_variants(columns, too_large=True)
        self._sample = b'{"id":"r0",%b:null}' % encode_column_name_as_json(columns[0].name)
        self._turn = 0
        self._held: dict[int, KafkaRecord] = {}
        in_transit = replace(scenario.faults, reordered=0.0, late=0.0)
        self._has_no_transit_faults = in_transit == FaultRates()

    def shift_event_times(self, ts: NDArray[np.int64], session: NDArray[np.int64]) -> None:
        """Makes some event times earlier, in place: a little (reordered messages) or much (late messages).

        Args:
            ts: Event time of each message in ms, shape (n,).
            session: Number of each message's session, shape (n,).
        """
        if not (self._faults.reordered or self._faults.late):
            return
        draw = self._rng.random(len(session))
        early = np.flatnonzero(draw < self._faults.reordered)
        ts[early] -= self._rng.integers(1, REORDERED_MS, len(early))
        late = np.flatnonzero(draw > 1 - self._faults.late)
        ts[late] -= (self._rng.uniform(1.5, 4, len(late)) * max(1.0, self._scenario.lateness_s) * 1000).astype(np.int64)

    def apply_transit_faults(self, messages: list[KafkaRecord], block: MessageBlock) -> list[KafkaRecord]:
        """Returns the messages of a block that reach Kafka: some are lost, repeated or moved, and some are added.

        Args:
            messages: The block's messages, one per slot.
            block: The block.
        """
        if self._has_no_transit_faults:
            return messages
        messages_by_slot = _MessagesBySlot(messages)
        self._insert_swapped_messages(messages, block, messages_by_slot)
        self._apply_start_and_end_faults(messages, block, messages_by_slot)
        self._apply_faults_per_message(messages, block, messages_by_slot)
        return messages_by_slot.list_all_messages()

    def release_swapped_messages(self, timestamp: int) -> list[KafkaRecord]:
        """Returns the swapped messages that still wait for their session's next message, which will not come.

        Args:
            timestamp: Kafka timestamp that they get, in ms.
        """
        held, self._held = list(self._held.values()), {}
        return [message._replace(timestamp=timestamp) for message in held]

    def _insert_swapped_messages(
        self, messages: list[KafkaRecord], block: MessageBlock, messages_by_slot: _MessagesBySlot
    ) -> None:
        """Inserts swapped messages of earlier blocks directly after their session's next message."""
        for session in list(self._held):
            successors = np.flatnonzero(block.session == session)
            if len(successors):
                slot = int(successors[0])
                messages_by_slot.get_messages_of_slot(slot).append(
                    self._held.pop(session)._replace(timestamp=messages[slot].timestamp)
                )

    def _apply_start_and_end_faults(
        self, messages: list[KafkaRecord], block: MessageBlock, messages_by_slot: _MessagesBySlot
    ) -> None:
        """Drops the first snapshot of some sessions, and adds a heartbeat after the end of some."""
        for slot in np.flatnonzero(block.kind == FIRST).tolist():
            if self._rng.random() < self._faults.orphans:
                messages_by_slot.drop_original_message(slot)
        for slot in np.flatnonzero(block.kind == END).tolist():
            if self._rng.random() < self._faults.after_end:
                value = _STRAY % (block.seq[slot] + 1, block.ts[slot] + 1)
                messages_by_slot.get_messages_of_slot(slot).append(messages[slot]._replace(value=value))

    def _apply_faults_per_message(
        self, messages: list[KafkaRecord], block: MessageBlock, messages_by_slot: _MessagesBySlot
    ) -> None:
        """Duplicates, loses, swaps, or adds a malformed message after some messages, at random."""
        faults = self._faults
        limits = np.cumsum([faults.duplicates, faults.gaps, faults.swaps, faults.malformed])
        drawn = np.searchsorted(limits, self._rng.random(len(messages)), side="right")
        for slot in np.flatnonzero(drawn < len(limits)).tolist():
            message = messages[slot]
            match int(drawn[slot]):
                case 0:
                    echo = min(slot + int(self._rng.integers(ECHO)), len(messages) - 1)
                    messages_by_slot.get_messages_of_slot(echo).append(
                        message._replace(timestamp=messages[echo].timestamp)
                    )
                case 1:
                    messages_by_slot.drop_original_message(slot)
                case 2:
                    messages_by_slot.drop_original_message(slot)
                    self._move_behind_next_message(slot, messages, block, messages_by_slot)
                case _:
                    messages_by_slot.get_messages_of_slot(slot).append(
                        self._make_malformed_message(message, int(block.seq[slot]), int(block.ts[slot]))
                    )

    def _move_behind_next_message(
        self, slot: int, messages: list[KafkaRecord], block: MessageBlock, messages_by_slot: _MessagesBySlot
    ) -> None:
        """Moves a message directly behind its session's next one, which may be in a later block."""
        session = int(block.session[slot])
        successors = np.flatnonzero(block.session[slot + 1 :] == session)
        if len(successors):
            behind = slot + 1 + int(successors[0])
            messages_by_slot.get_messages_of_slot(behind).append(
                messages[slot]._replace(timestamp=messages[behind].timestamp)
            )
        else:
            self._held[session] = messages[slot]

    def _make_malformed_message(self, message: KafkaRecord, seq: int, ts: int) -> KafkaRecord:
        """Returns a malformed message made from a valid one. Calls go through all ways to break a message in turn.

        Args:
            message: The valid message, whose topic, partition and timestamp are kept.
            seq: Its sequence number.
            ts: Its event time in ms.
        """
        limit = self._scenario.max_message_bytes
        valid_message = ValidMessage(
            message.key or b"",
            seq,
            ts,
            self._sample,
            message.timestamp,
            limit,
            round(self._scenario.future_skew_s * 1000),
        )
        reason, make = self._variants[self._turn % len(self._variants)]
        self._turn += 1
        if reason == "too_large" and limit > MODEST_BYTES and self._turn > len(self._variants):
            return self._make_malformed_message(message, seq, ts)
        key, value = make(valid_message)
        return message._replace(key=key, value=value)


class _MessagesBySlot:
    """The messages that are written to Kafka in each slot: at first, the one that was drawn for the slot."""

    def __init__(self, messages: list[KafkaRecord]) -> None:
        self._messages = messages
        self._changed: dict[int, list[KafkaRecord]] = {}

    def get_messages_of_slot(self, slot: int) -> list[KafkaRecord]:
        """Returns the list of a slot's messages, which the caller may change."""
        return self._changed.setdefault(slot, [self._messages[slot]])

    def drop_original_message(self, slot: int) -> None:
        """Removes the message that was drawn for the slot, and keeps messages that were added to the slot."""
        contents = self.get_messages_of_slot(slot)
        if contents and contents[0] is self._messages[slot]:
            del contents[0]

    def list_all_messages(self) -> list[KafkaRecord]:
        """Returns all messages, disturbed or not, in the order in which they are sent."""
        found: list[KafkaRecord] = []
        begin = 0
        for slot in sorted(self._changed):
            found += self._messages[begin:slot]
            found += self._changed[slot]
            begin = slot + 1
        return found + self._messages[begin:]
