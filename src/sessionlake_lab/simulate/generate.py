"""Generates the messages of a scenario. The result depends only on the scenario and its seed, not on a clock.

Messages are drawn in blocks. numpy draws all numbers of a block at once. Python loops format the texts, and otherwise
handle only the few special or faulty messages.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from sessionlake.protocol.columns import ID
from sessionlake_lab.simulate.block import DELETE, END, FIRST, HEARTBEAT, SNAPSHOT, UPDATE, MessageBlock
from sessionlake_lab.simulate.disturb import FaultInjector
from sessionlake_lab.simulate.malformed import list_unusual_valid_forms
from sessionlake_lab.simulate.rows import RowFormatter, draw_skewed_row_numbers
from sessionlake_lab.simulate.scenario import KafkaRecord, Scenario
from sessionlake_lab.simulate.sensors import FAMILIES, SimulatedSensors
from sessionlake_lab.simulate.timeline import SessionTimeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from sessionlake.protocol.columns import Column

_UPDATE = b'{"type":"update","seq":%d,"ts":%d,"rows":[%b]}'
_DELETE = b'{"type":"update","seq":%d,"ts":%d,"deleted":["%b"]}'
_SNAPSHOT = b'{"type":"snapshot","seq":%d,"ts":%d,"rows":[%b]}'
_HEARTBEAT = b'{"type":"heartbeat","seq":%d,"ts":%d}'
_END = b'{"type":"end","seq":%d,"ts":%d}'
# Share of the rows that a later snapshot leaves out.
_DROPPED = 0.1
# Range of the delay between an event and its arrival in Kafka, in milliseconds.
_LATENCY_MS = (2, 60)


def generate_messages(scenario: Scenario, columns: Sequence[Column]) -> Iterator[KafkaRecord]:
    """Generates a scenario's messages.

    Args:
        scenario: The scenario.
        columns: The declared columns (`settings.capture.declared_columns`).

    Yields:
        Messages in the order in which they are to be written. Their timestamps never decrease.
    """
    others = [column for column in columns if column.name != ID]  # every row has an id, even if it is not declared
    return chain.from_iterable(_MessageGenerator(scenario, others).generate_message_blocks())


class _MessageGenerator:
    """Generates the messages of a scenario block by block."""

    def __init__(self, scenario: Scenario, columns: Sequence[Column]) -> None:
        self._scenario = scenario
        self._rng = rng = np.random.default_rng(scenario.seed)
        self._world = SimulatedSensors(scenario, columns, rng)
        self._text = RowFormatter(self._world, columns, scenario.mix, rng)
        self._timeline = SessionTimeline(scenario, rng)
        self._disturb = FaultInjector(scenario, columns, rng)
        self._latency = rng.integers(*_LATENCY_MS, scenario.session_count)
        self._addresses = _list_topic_partition_and_key_per_session(scenario)
        self._odd = list_unusual_valid_forms()

    def generate_message_blocks(self) -> Iterator[list[KafkaRecord]]:
        """Yields the messages of each block with faults, and at the end those that faults have held back."""
        slots, size = self._scenario.message_slot_count, self._scenario.slots_per_block
        for begin in range(0, slots, size):
            block = self._draw_message_block(begin, min(size, slots - begin))
            self._disturb.shift_event_times(block.ts, block.session)
            messages = [
                KafkaRecord(*address, value, time)
                for address, value, time in zip(
                    map(self._addresses.__getitem__, block.session.tolist()),
                    self._format_messages(block),
                    block.time.tolist(),
                    strict=True,
                )
            ]
            yield self._disturb.apply_transit_faults(messages, block)
        yield self._disturb.release_swapped_messages(self._scenario.start_ms + round(self._scenario.duration_s * 1000))

    def _draw_message_block(self, begin: int, count: int) -> MessageBlock:
        """Draws which session sends which kind of message, and when, for `count` slots from number `begin` on."""
        step = 1000 / self._scenario.rate
        elapsed = ((begin + np.arange(count)) * step).astype(np.int64)
        starting, ending = self._timeline.start_and_end_sessions(elapsed[-1] / 1000, count)
        others = self._timeline.choose_sending_sessions(count - len(starting) - len(ending))
        session = np.concatenate([np.array(starting + ending, np.int64), others])
        own = np.repeat(np.array([FIRST, END], np.int8), [len(starting), len(ending)])
        kind = np.concatenate([own, self._draw_message_kinds(len(others))])
        time = self._scenario.start_ms + elapsed[: len(session)]
        return MessageBlock(session, kind, self._timeline.assign_seqs(session), time - self._latency[session], time)

    def _draw_message_kinds(self, count: int) -> NDArray[np.int8]:
        """Returns random kinds of messages, as often as the scenario's mix says."""
        mix = self._scenario.mix
        limits = np.cumsum([mix.snapshots, mix.deletes, mix.heartbeats])
        kinds = np.array([SNAPSHOT, DELETE, HEARTBEAT, UPDATE], np.int8)
        return kinds[np.searchsorted(limits, self._rng.random(count), side="right")]

    def _format_messages(self, block: MessageBlock) -> list[bytes]:
        """Returns the text of every message. Formats all as updates first, then replaces those of other kinds."""
        seqs, times = block.seq.tolist(), block.ts.tolist()
        values = [_UPDATE % fields for fields in zip(seqs, times, self._format_update_rows(block), strict=True)]
        for index in np.flatnonzero(block.kind == HEARTBEAT).tolist():
            values[index] = _HEARTBEAT % (seqs[index], times[index])
        for index in np.flatnonzero(block.kind == END).tolist():
            values[index] = _END % (seqs[index], times[index])
        self._replace_with_delete_messages(values, block)
        self._replace_with_snapshot_messages(values, block)
        if self._scenario.mix.unusual:
            for index in np.flatnonzero(self._rng.random(len(values)) < self._scenario.mix.unusual).tolist():
                values[index] = self._odd[int(self._rng.integers(len(self._odd)))](values[index])
        return values

    def _format_update_rows(self, block: MessageBlock) -> list[bytes]:
        """Returns the rows of an update for each slot, as joined JSON text."""
        count, mean = len(block.session), self._scenario.mix.rows_per_update
        first = draw_skewed_row_numbers(self._scenario, self._rng, count)
        elapsed = (block.time - self._scenario.start_ms) / 1000
        if mean == 1 or self._scenario.rows == 1:
            return self._text.format_varied_rows(block.session, first, elapsed)
        sizes = np.minimum(1 + self._rng.poisson(mean - 1, count), self._scenario.rows)
        ends = np.cumsum(sizes)
        # The other rows follow the first one, so that no row occurs twice in a message.
        offset = np.arange(ends[-1] if count else 0) - np.repeat(ends - sizes, sizes)
        row = (np.repeat(first, sizes) + offset) % self._scenario.rows
        text = self._text.format_varied_rows(np.repeat(block.session, sizes), row, np.repeat(elapsed, sizes))
        bounds = zip((ends - sizes).tolist(), ends.tolist(), strict=True)
        return [text[low] if high - low == 1 else b",".join(text[low:high]) for low, high in bounds]

    def _replace_with_delete_messages(self, values: list[bytes], block: MessageBlock) -> None:
        """Makes the messages in slots of kind DELETE delete a row, in place. Every second one also has rows."""
        where = np.flatnonzero(block.kind == DELETE)
        row_ids = self._world.make_row_ids(
            block.session[where], draw_skewed_row_numbers(self._scenario, self._rng, len(where))
        )
        for number, (index, row_id) in enumerate(zip(where.tolist(), row_ids, strict=True)):
            if number % 2:
                values[index] = values[index][:-1] + b',"deleted":["%b"]}' % row_id
            else:
                values[index] = _DELETE % (block.seq[index], block.ts[index], row_id)

    def _replace_with_snapshot_messages(self, values: list[bytes], block: MessageBlock) -> None:
        """Puts snapshots in place of messages. A session's first one has every row, and later ones lack some."""
        where = np.flatnonzero((block.kind == FIRST) | (block.kind == SNAPSHOT))
        rows = self._scenario.rows
        elapsed = (block.time[where] - self._scenario.start_ms) / 1000
        session = np.repeat(block.session[where], rows)
        text = self._text.format_full_rows(session, np.tile(np.arange(rows), len(where)), np.repeat(elapsed, rows))
        for number, index in enumerate(where.tolist()):
            table = text[number * rows : (number + 1) * rows]
            if block.kind[index] == SNAPSHOT:
                kept = self._rng.random(rows) >= _DROPPED
                table = [row for row, keep in zip(table, kept.tolist(), strict=True) if keep]
            values[index] = _SNAPSHOT % (block.seq[index], block.ts[index], b",".join(table))


def choose_partition_of_key(key: bytes, partitions: int) -> int:
    """Returns the partition of a session's key. CRC-32 is not used: it sends many consecutive keys to one partition."""
    return int.from_bytes(blake2b(key, digest_size=4).digest()) % partitions


def _list_topic_partition_and_key_per_session(scenario: Scenario) -> list[tuple[str, int, bytes]]:
    """Returns topic, partition and key of every session."""
    run = scenario.run_id or blake2b(b"%d:%d" % (scenario.seed, scenario.start_ms), digest_size=4).hexdigest()
    found = []
    for sensor in range(scenario.sensors):
        name = f"{FAMILIES[sensor % len(FAMILIES)].name}-{sensor:02d}"
        for number in range(scenario.sessions_per_sensor):
            key = f"{name}-{run}-{number:04d}".encode()
            found.append((scenario.prefix + name, choose_partition_of_key(key, scenario.partitions), key))
    return found
