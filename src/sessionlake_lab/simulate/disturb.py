"""What goes wrong between a sensor and Kafka: messages lost, doubled, swapped, late, and rubbish in between."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sessionlake_lab.simulate.block import END, FIRST, Block
from sessionlake_lab.simulate.malformed import Victim, variants
from sessionlake_lab.simulate.rows import json_name
from sessionlake_lab.simulate.scenario import Faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sessionlake.protocol.columns import Column
    from sessionlake_lab.simulate.scenario import KafkaRecord, Scenario

_STRAY = b'{"type":"heartbeat","seq":%d,"ts":%d}'
# How far back a reordered event time lies at most.
REORDERED_MS = 2000
# A duplicate comes within this many slots.
ECHO = 40
# Beyond this a too large value is megabytes: one such message a run shows what there is to see.
MODEST_BYTES = 100_000


class Disturber:
    """Applies a scenario's faults to finished blocks.

    Args:
        scenario: the rates.
        columns: the declared columns, to break.
        rng: the scenario's only source of chance.
    """

    def __init__(self, scenario: Scenario, columns: Sequence[Column], rng: np.random.Generator) -> None:
        self._scenario, self._faults, self._rng = scenario, scenario.faults, rng
        self._variants = variants(columns, too_large=True)
        self._sample = b'{"id":"r0",%b:null}' % json_name(columns[0].name)
        self._turn = 0
        self._held: dict[int, KafkaRecord] = {}
        on_the_way = replace(scenario.faults, reordered=0.0, late=0.0)
        self._quiet = on_the_way == Faults()

    def event_times(self, ts: NDArray[np.int64], session: NDArray[np.int64]) -> None:
        """Moves some event times back, in place: a little (reordered) or far (late). Shapes (n,)."""
        if not (self._faults.reordered or self._faults.late):
            return
        draw = self._rng.random(len(session))
        early = np.flatnonzero(draw < self._faults.reordered)
        ts[early] -= self._rng.integers(1, REORDERED_MS, len(early))
        late = np.flatnonzero(draw > 1 - self._faults.late)
        ts[late] -= (self._rng.uniform(1.5, 4, len(late)) * max(1.0, self._scenario.lateness_s) * 1000).astype(np.int64)

    def on_the_way(self, messages: list[KafkaRecord], block: Block) -> list[KafkaRecord]:
        """What reaches Kafka of a block, one message a slot: some slots now hold none, some several."""
        if self._quiet:
            return messages
        arriving = _Arriving(messages)
        self._release(messages, block, arriving)
        self._lifecycle(messages, block, arriving)
        self._in_transit(messages, block, arriving)
        return arriving.assembled()

    def left_over(self, timestamp: int) -> list[KafkaRecord]:
        """Messages still waiting for a successor when the run ends, written at that time (milliseconds)."""
        held, self._held = list(self._held.values()), {}
        return [message._replace(timestamp=timestamp) for message in held]

    def _release(self, messages: list[KafkaRecord], block: Block, arriving: _Arriving) -> None:
        """Swapped messages of earlier blocks go right behind their session's next one."""
        for session in list(self._held):
            successors = np.flatnonzero(block.session == session)
            if len(successors):
                slot = int(successors[0])
                arriving.at(slot).append(self._held.pop(session)._replace(timestamp=messages[slot].timestamp))

    def _lifecycle(self, messages: list[KafkaRecord], block: Block, arriving: _Arriving) -> None:
        for slot in np.flatnonzero(block.kind == FIRST).tolist():
            if self._rng.random() < self._faults.orphans:
                arriving.drop(slot)
        for slot in np.flatnonzero(block.kind == END).tolist():
            if self._rng.random() < self._faults.after_end:
                value = _STRAY % (block.seq[slot] + 1, block.ts[slot] + 1)
                arriving.at(slot).append(messages[slot]._replace(value=value))

    def _in_transit(self, messages: list[KafkaRecord], block: Block, arriving: _Arriving) -> None:
        faults = self._faults
        limits = np.cumsum([faults.duplicates, faults.gaps, faults.swaps, faults.malformed])
        drawn = np.searchsorted(limits, self._rng.random(len(messages)), side="right")
        for slot in np.flatnonzero(drawn < len(limits)).tolist():
            message = messages[slot]
            match int(drawn[slot]):
                case 0:
                    echo = min(slot + int(self._rng.integers(ECHO)), len(messages) - 1)
                    arriving.at(echo).append(message._replace(timestamp=messages[echo].timestamp))
                case 1:
                    arriving.drop(slot)
                case 2:
                    arriving.drop(slot)
                    self._hold(slot, messages, block, arriving)
                case _:
                    arriving.at(slot).append(self._malformed(message, int(block.seq[slot]), int(block.ts[slot])))

    def _hold(self, slot: int, messages: list[KafkaRecord], block: Block, arriving: _Arriving) -> None:
        session = int(block.session[slot])
        successors = np.flatnonzero(block.session[slot + 1 :] == session)
        if len(successors):
            behind = slot + 1 + int(successors[0])
            arriving.at(behind).append(messages[slot]._replace(timestamp=messages[behind].timestamp))
        else:
            self._held[session] = messages[slot]

    def _malformed(self, message: KafkaRecord, seq: int, ts: int) -> KafkaRecord:
        """The next kind in turn, in the image of a message that was just written."""
        limit = self._scenario.max_message_bytes
        victim = Victim(
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
            return self._malformed(message, seq, ts)
        key, value = make(victim)
        return message._replace(key=key, value=value)


class _Arriving:
    """What is written in each slot, where that is not just the slot's own message."""

    def __init__(self, messages: list[KafkaRecord]) -> None:
        self._messages = messages
        self._changed: dict[int, list[KafkaRecord]] = {}

    def at(self, slot: int) -> list[KafkaRecord]:
        """The messages of a slot, to change."""
        return self._changed.setdefault(slot, [self._messages[slot]])

    def drop(self, slot: int) -> None:
        """Removes the slot's own message, leaving what else was put there."""
        there = self.at(slot)
        if there and there[0] is self._messages[slot]:
            del there[0]

    def assembled(self) -> list[KafkaRecord]:
        """All slots in order."""
        found: list[KafkaRecord] = []
        begin = 0
        for slot in sorted(self._changed):
            found += self._messages[begin:slot]
            found += self._changed[slot]
            begin = slot + 1
        return found + self._messages[begin:]
