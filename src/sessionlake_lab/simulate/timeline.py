"""Decides when sessions start, end and fall silent, and which session sends each message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sessionlake_lab.simulate.scenario import Scenario

# Limit of the snapshots' rows in one block, which limits its memory. Further sessions start in the next block.
MAX_SNAPSHOT_ROWS = 200_000
# Share of sessions whose first seq is not 0, which the protocol allows.
ODD_START = 0.2


class SessionTimeline:
    """Lifetimes of all sessions, advanced block by block.

    Attributes:
        active: Numbers of the sessions that send messages, shape (m,), in the order in which they started.
        next_seq: The next `seq` of each session, shape (sessions,).
    """

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        count, end = scenario.session_count, scenario.duration_s
        begin = _choose_sensor_starts(scenario, rng).repeat(scenario.sessions_per_sensor)
        joins = (rng.random(count) < scenario.joining) & (np.arange(count) % scenario.sessions_per_sensor > 0)
        start = np.where(joins, rng.uniform(begin, begin + 0.9 * (end - begin)), begin)
        fate = rng.random(count)
        self._says_end = fate < scenario.ended
        leaves = fate < scenario.ended + scenario.silent
        stop = np.where(leaves, rng.uniform(start + 0.3 * (end - start), end), np.inf)
        self._starts = _sort_latest_first(start)
        self._stops = _sort_latest_first(stop)
        self._started = np.zeros(count, np.bool_)
        self._most_starts = max(1, MAX_SNAPSHOT_ROWS // scenario.rows)
        self._round_robin, self._turn = scenario.round_robin, 0
        self._rng = rng
        self.active: NDArray[np.int64] = np.empty(0, np.int64)
        self.next_seq = np.where(rng.random(count) < ODD_START, rng.integers(1, 10**6, count), 0)
        if scenario.round_robin:
            self.next_seq[:] = 0

    def start_and_end_sessions(self, elapsed_s: float, slots: int) -> tuple[list[int], list[int]]:
        """Starts and ends sessions up to a time, and updates `active`.

        Args:
            elapsed_s: Seconds since the start.
            slots: Number of messages that fit into the block. Further starts and ends wait for the next block.

        Returns:
            The numbers of the sessions that start, and of those that send an end message.
        """
        starting: list[int] = []
        while len(starting) < min(slots, self._most_starts) and self._starts and self._starts[-1][0] <= elapsed_s:
            starting.append(self._starts.pop()[1])
        self._started[starting] = True
        leaving: list[int] = []
        while len(leaving) < slots - len(starting) and self._stops and self._stops[-1][0] <= elapsed_s:
            if not self._started[self._stops[-1][1]]:
                break  # the session has not started yet, because the block was full
            leaving.append(self._stops.pop()[1])
        if starting or leaving:
            everyone = np.concatenate([self.active, np.array(starting, np.int64)])
            self.active = everyone[~np.isin(everyone, leaving)]
        return starting, [session for session in leaving if self._says_end[session]]

    def choose_sending_sessions(self, count: int) -> NDArray[np.int64]:
        """Returns the session number of each of the next `count` messages; empty if no session is active."""
        if not len(self.active):
            return np.empty(0, np.int64)
        if not self._round_robin:
            return self.active[self._rng.integers(0, len(self.active), count)]
        turn = (self._turn + np.arange(count)) % len(self.active)
        self._turn = (self._turn + count) % len(self.active)
        return self.active[turn]

    def assign_seqs(self, senders: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the seq of each message, and advances `next_seq`. `senders` has their sessions; shapes (n,)."""
        order = np.argsort(senders, kind="stable")
        ordered = senders[order]
        first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
        counts = np.diff(np.r_[first, len(ordered)])
        rank = np.arange(len(ordered)) - np.repeat(first, counts)
        seqs = np.empty(len(ordered), np.int64)
        seqs[order] = self.next_seq[ordered] + rank
        self.next_seq[ordered[first]] += counts
        return seqs


def _choose_sensor_starts(scenario: Scenario, rng: np.random.Generator) -> NDArray[np.float64]:
    """Returns the seconds at which each sensor's topic appears: 0, or for late sensors in the first half of the run."""
    starts = np.zeros(scenario.sensors)
    late = min(round(scenario.sensors * scenario.late_sensors), scenario.sensors - 1)
    if late:
        starts[-late:] = np.sort(rng.uniform(0.1, 0.5, late)) * scenario.duration_s
    return starts


def _sort_latest_first(times: NDArray[np.float64]) -> list[tuple[float, int]]:
    """Returns pairs of time and session number, latest first, without infinite times. `times` has one per session."""
    order = np.argsort(times, kind="stable")[::-1]
    return [(float(times[session]), int(session)) for session in order if np.isfinite(times[session])]
