"""The plants behind the sensors: daily cycles, correlated noise, small state machines, and faults worth finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sessionlake.protocol.columns import Column, JsonType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sessionlake_lab.simulate.scenario import Scenario

# How much of the noise lasts from one reading of a row to the next: a first-order autoregression.
PERSISTENCE = 0.9
# A reading moves a row's state machine this often.
TRANSITION = 0.05
STATES = 4
STUCK, SPIKE, DRIFT = 1, 2, 3
# Heights in units of the day's swing; every fifth reading of a spiking row spikes.
SPIKE_HEIGHT, SPIKE_RATE, DRIFT_HEIGHT = 8.0, 0.2, 4.0
# The golden ratio's multiples fill an interval evenly: a cheap, stable number in [0, 1) for every row.
GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Metric:
    """One physical quantity: its mean, the amplitude of its day, its noise, and how far rows differ from each other."""

    base: float
    swing: float
    noise: float
    spread: float


@dataclass(frozen=True)
class Family:
    """A kind of plant. Numeric columns take its metrics in turn; the first string column is the state.

    Attributes:
        name: also the beginning of the topic's last part.
        row: beginning of row ids.
        metrics: quantities, in the order in which numeric columns take them.
        states: the normal state first.
        ladder: rows differ by their position (levels of a book), not at random.
    """

    name: str
    row: str
    metrics: tuple[Metric, Metric]
    states: tuple[str, str, str, str]
    ladder: bool = False


_CHAMBER = (Metric(40, 6, 0.15, 2), Metric(1200, 150, 8, 60))  # degrees Celsius; fan speed per minute
_TURBINE = (Metric(1450, 600, 25, 120), Metric(14, 4, 0.4, 2))  # kilowatts; rotor speed per minute
_PARCEL = (Metric(12.5, 3, 0.6, 4), Metric(80, 50, 5, 20))  # kilograms; parcels waiting
_DEPTH = (Metric(101, 0.8, 0.02, 1.5), Metric(420, 160, 35, 90))  # price; lots
FAMILIES = (
    Family("chamber", "probe-", _CHAMBER, ("OK", "DEFROST", "DOOR_OPEN", "ALARM")),
    Family("turbine", "wtg-", _TURBINE, ("RUN", "YAW", "ICING", "TRIPPED")),
    Family("parcel", "bay-", _PARCEL, ("READY", "FULL", "JAM", "OFFLINE")),
    Family("depth", "lvl-", _DEPTH, ("OPEN", "PART", "HIDDEN", "HALT"), ladder=True),
)


class World:
    """The state of every row of every session, advanced by being read.

    Args:
        scenario: numbers of sensors, sessions and rows, and the seed of what is not drawn from `rng`.
        columns: the declared columns; what a row's reading consists of.
        rng: the scenario's only source of chance.
    """

    def __init__(self, scenario: Scenario, columns: Sequence[Column], rng: np.random.Generator) -> None:
        self._rng = rng
        self._columns = columns
        self._rows = scenario.rows
        self._day = scenario.day
        shape = (scenario.sessions, scenario.rows)
        self.family = np.arange(scenario.sessions) // scenario.sessions_per_sensor % len(FAMILIES)
        self._phase = rng.random(scenario.sessions) * 0.15
        self._state = np.zeros(shape, np.int8)
        self._noise = [np.zeros(shape, np.float32) for column in columns if column.numeric]
        self._ladder = np.array([family.ladder for family in FAMILIES])[self.family]
        self._metrics = _per_session(self.family)
        self._troubles = _Troubles(scenario, rng)
        width = len(str(scenario.rows - 1))
        self._ids = [f"{family.row}{row:0{width}d}".encode() for family in FAMILIES for row in range(scenario.rows)]
        self._names = [state.encode() for family in FAMILIES for state in family.states]

    def ids(self, session: NDArray[np.int64], row: NDArray[np.int64]) -> list[bytes]:
        """Row ids, as UTF-8, of the given rows of the given sessions."""
        ids = self._ids
        return [ids[index] for index in (self.family[session] * self._rows + row).tolist()]

    def read(self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64]) -> list[list[Any]]:
        """A reading of every declared column.

        Args:
            session: session numbers, shape (n,).
            row: row numbers, shape (n,).
            elapsed: seconds since the scenario's start, shape (n,).

        Returns:
            One list of n per column: floats, ints, or UTF-8 text as it stands between quotes (booleans: bare).
        """
        state = self._move(session, row)
        place = np.where(self._ladder[session], row / self._rows, ((row + 1) * GOLDEN + session * 0.37) % 1.0)
        found: list[list[Any]] = []
        numeric = strings = 0
        for column in self._columns:
            if column.numeric:
                found.append(_fit(column, self._measure(numeric, session, row, elapsed, place)))
                numeric += 1
            elif column.json_type is JsonType.BOOLEAN:
                found.append([b"true" if flag else b"false" for flag in (state == 0).tolist()])
            else:
                found.append(self._words(strings, session, row, state))
                strings += 1
        return found

    def _move(self, session: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int8]:
        """Steps the state machines: from normal to any trouble, from trouble mostly back."""
        state = self._state[session, row]
        draw = self._rng.random(len(session))
        leaving = (state == 0) & (draw < TRANSITION)
        state[leaving] = 1 + (draw[leaving] * (STATES - 1) / TRANSITION).astype(np.int8)
        state[~leaving & (draw > 1 - 4 * TRANSITION)] = 0
        self._state[session, row] = state
        return state

    def _measure(
        self,
        number: int,
        session: NDArray[np.int64],
        row: NDArray[np.int64],
        elapsed: NDArray[np.float64],
        place: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """The `number`-th numeric column: mean + place of the row + day + noise + trouble."""
        base, swing, sigma, spread = self._metrics[number % 2]
        shift = 0.25 * number
        noise = PERSISTENCE * self._noise[number][session, row] + self._rng.standard_normal(len(session), np.float32)
        self._noise[number][session, row] = noise
        frozen, extra = self._troubles.apply(session, row, elapsed, self._rng)
        then = np.where(np.isnan(frozen), elapsed, frozen)
        day = np.sin(2 * np.pi * (then / self._day + self._phase[session] + shift))
        living = np.where(np.isnan(frozen), noise * sigma[session], 0.0)
        reading: NDArray[np.float64] = (
            base[session] + spread[session] * (place - 0.5) * 2 + swing[session] * (day + extra) + living
        )
        return reading

    def _words(
        self, number: int, session: NDArray[np.int64], row: NDArray[np.int64], state: NDArray[np.int8]
    ) -> list[bytes]:
        if number > 0:  # where the row stands: it never changes
            return [b"zone %d" % (place % 7) for place in row.tolist()]
        names = self._names
        return [names[index] for index in (self.family[session] * STATES + state).tolist()]


class _Troubles:
    """At most one row of a session is in trouble, for a third of its time: what rules on these tables can find."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        count = scenario.sessions
        afflicted = rng.random(count) < scenario.mix.anomalies
        self._any = bool(afflicted.any())
        self._kind = np.where(afflicted, rng.integers(STUCK, DRIFT + 1, count), 0)
        # Among the rows that are read most, else nobody would see it.
        self._row = rng.integers(0, max(1, scenario.rows // 50), count)
        self._from = rng.uniform(0.3, 0.6, count) * scenario.duration_s
        self._length = scenario.duration_s / 3

    def apply(
        self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64], rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What befalls each reading, shapes (n,).

        Returns:
            The time at which a stuck row froze (NaN: not stuck), and what to add, in units of the day's swing.
        """
        frozen, extra = np.full(len(session), np.nan), np.zeros(len(session))
        if not self._any:
            return frozen, extra
        since = (elapsed - self._from[session]) / self._length
        kind = np.where((row == self._row[session]) & (since >= 0) & (since < 1), self._kind[session], 0)
        stuck, drift = kind == STUCK, kind == DRIFT
        frozen[stuck] = self._from[session][stuck]
        extra[drift] = DRIFT_HEIGHT * since[drift]
        spike = np.flatnonzero(kind == SPIKE)
        extra[spike] = SPIKE_HEIGHT * (rng.random(len(spike)) < SPIKE_RATE)
        return frozen, extra


def _per_session(family: NDArray[np.int64]) -> list[tuple[NDArray[np.float64], ...]]:
    """Per metric number: base, swing, noise and spread of every session."""
    table = np.array([[(m.base, m.swing, m.noise, m.spread) for m in kind.metrics] for kind in FAMILIES])
    return [tuple(table[family, number, part] for part in range(4)) for number in range(2)]


def _fit(column: Column, reading: NDArray[np.float64]) -> list[Any]:
    """Rounds into an integer column's range; a number stays a float."""
    if column.json_type is JsonType.NUMBER:
        return reading.tolist()
    limit = 2 ** (column.bits - 1) - 1
    return np.rint(np.clip(reading, -min(limit, 2**53), min(limit, 2**53))).astype(np.int64).tolist()
