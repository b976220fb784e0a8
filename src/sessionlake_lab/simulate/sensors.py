"""Simulated readings: daily cycles, correlated noise, small state machines, and anomalies for rules to find."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sessionlake.protocol.columns import Column, JsonType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sessionlake_lab.simulate.scenario import Scenario

# Share of a row's noise that carries over to its next reading (a first-order autoregression).
PERSISTENCE = 0.9
# Probability that a reading changes a row's state.
TRANSITION = 0.05
STATES = 4
STUCK, SPIKE, DRIFT = 1, 2, 3
# Heights are in units of the daily amplitude. Every fifth reading of a spiking row is a spike.
SPIKE_HEIGHT, SPIKE_RATE, DRIFT_HEIGHT = 8.0, 0.2, 4.0
# Multiples of the golden ratio modulo 1 are evenly distributed, which gives each row a fixed number in [0, 1).
GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class PhysicalQuantity:
    """A physical quantity that sensors measure. All numbers are in its own unit.

    Attributes:
        base: Mean.
        swing: Amplitude of the daily cycle.
        noise: Standard deviation of the random change from one reading to the next.
        spread: Largest difference between the mean of a row and `base`.
        low: Lowest possible reading.
        high: Highest possible reading.
        step: Readings are multiples of it: a thermometer's resolution, or the tick of a price.
    """

    base: float
    swing: float
    noise: float
    spread: float
    low: float = -np.inf
    high: float = np.inf
    step: float = 0.01


@dataclass(frozen=True)
class SensorFamily:
    """A kind of sensor.

    Attributes:
        name: Name, with which the last part of the topic's name starts.
        row: Prefix of row ids.
        metrics: Physical quantities by the name of their column. If no such column is declared, they are assigned to
            the numeric columns in turn.
        states: Names of the states, the normal one first. The first string column has the name of the row's state.
        ladder: True if rows differ by their position, such as levels of an order book, instead of at random.
    """

    name: str
    row: str
    metrics: dict[str, PhysicalQuantity]
    states: tuple[str, str, str, str]
    ladder: bool = False

    def get_quantity_of_column(self, columns: Sequence[Column], column: Column) -> PhysicalQuantity | None:
        """Returns the quantity that a numeric column has; None if sensors of this family do not send the column.

        Args:
            columns: All declared columns.
            column: One of them.
        """
        numeric = [one.name for one in columns if one.is_numeric]
        if self.metrics.keys() & numeric:
            return self.metrics.get(column.name)
        return list(self.metrics.values())[numeric.index(column.name) % len(self.metrics)]

    def list_sent_column_indices(self, columns: Sequence[Column]) -> list[int]:
        """Returns the indices in `columns` of the columns that sensors of this family send."""
        return [
            place
            for place, column in enumerate(columns)
            if not column.is_numeric or self.get_quantity_of_column(columns, column) is not None
        ]


_CHAMBER = {  # degrees Celsius; relative humidity in percent
    "temperature": PhysicalQuantity(20, 1.5, 0.04, 0.8, low=-40, high=80),
    "humidity": PhysicalQuantity(55, 6, 0.4, 4, low=0, high=100),
}
_TURBINE = {  # kilowatts; rotations per minute
    "power": PhysicalQuantity(1450, 600, 25, 120, low=0, high=3000),
    "rotor_speed": PhysicalQuantity(14, 3, 0.3, 1, low=0, high=22),
}
_PARCEL = {  # kilograms; number of parcels that wait
    "weight": PhysicalQuantity(12.5, 3, 0.6, 4, low=0.05, high=70, step=0.05),
    "waiting": PhysicalQuantity(80, 50, 5, 20, low=0),
}
_DEPTH = {  # price of a level, on a tick of 0.05; number of lots
    "price": PhysicalQuantity(101, 0.8, 0.02, 1.5, low=0.05, step=0.05),
    "qty": PhysicalQuantity(420, 160, 35, 90, low=1),
}
FAMILIES = (
    SensorFamily("chamber", "probe-", _CHAMBER, ("OK", "DEFROST", "DOOR_OPEN", "ALARM")),
    SensorFamily("turbine", "wtg-", _TURBINE, ("RUN", "YAW", "ICING", "TRIPPED")),
    SensorFamily("parcel", "bay-", _PARCEL, ("READY", "FULL", "JAM", "OFFLINE")),
    SensorFamily("depth", "lvl-", _DEPTH, ("OPEN", "PART", "HIDDEN", "HALT"), ladder=True),
)
SENSOR_COLUMNS = {
    **{name: "double" if place == 0 else "bigint" for family in FAMILIES for place, name in enumerate(family.metrics)},
    "status": "string",
}
"""Columns for which every sensor sends its own quantities, with their types: a key `capture.columns`."""


class SimulatedSensors:
    """State of every row of every session. Each reading advances the row's state.

    Args:
        scenario: Numbers of sensors, sessions and rows.
        columns: Declared columns, which a reading consists of.
        rng: The scenario's only source of randomness.
    """

    def __init__(self, scenario: Scenario, columns: Sequence[Column], rng: np.random.Generator) -> None:
        self._rng = rng
        self._columns = columns
        self._rows = scenario.rows
        self._day = scenario.seconds_per_simulated_day
        shape = (scenario.session_count, scenario.rows)
        self.family = np.arange(scenario.session_count) // scenario.sessions_per_sensor % len(FAMILIES)
        self._phase = rng.random(scenario.session_count) * 0.15
        self._state = np.zeros(shape, np.int8)
        self._noise = [np.zeros(shape, np.float32) for column in columns if column.is_numeric]
        self._ladder = np.array([family.ladder for family in FAMILIES])[self.family]
        self._metrics = [
            _choose_quantities_per_session(self.family, columns, column) for column in columns if column.is_numeric
        ]
        self._anomalies = _SensorAnomalies(scenario, rng)
        width = len(str(scenario.rows - 1))
        self._ids = [f"{family.row}{row:0{width}d}".encode() for family in FAMILIES for row in range(scenario.rows)]
        self._names = [state.encode() for family in FAMILIES for state in family.states]

    def make_row_ids(self, session: NDArray[np.int64], row: NDArray[np.int64]) -> list[bytes]:
        """Returns row ids in UTF-8. `session` and `row` have their session and row numbers, both of shape (n,)."""
        ids = self._ids
        return [ids[index] for index in (self.family[session] * self._rows + row).tolist()]

    def read_sensors(
        self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64]
    ) -> list[list[Any]]:
        """Returns a reading of every declared column.

        Args:
            session: Session numbers, shape (n,).
            row: Row numbers, shape (n,).
            elapsed: Seconds since the scenario's start, shape (n,).

        Returns:
            A list of n values per column: floats, ints, or UTF-8 text as in JSON but without quotes.
        """
        state = self._advance_states(session, row)
        place = np.where(self._ladder[session], row / self._rows, ((row + 1) * GOLDEN + session * 0.37) % 1.0)
        found: list[list[Any]] = []
        numeric = strings = 0
        for column in self._columns:
            if column.is_numeric:
                found.append(
                    _convert_to_column_type(
                        column, self._simulate_numeric_column(numeric, session, row, elapsed, place)
                    )
                )
                numeric += 1
            elif column.json_type is JsonType.BOOLEAN:
                found.append([b"true" if flag else b"false" for flag in (state == 0).tolist()])
            else:
                found.append(self._read_text_column(strings, session, row, state))
                strings += 1
        return found

    def _advance_states(self, session: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int8]:
        """Changes the states of rows at random, and returns them as numbers: 0 is normal, and 1 to 3 are the others.

        A row goes from normal to any other state, and from there mostly back to normal.
        """
        state = self._state[session, row]
        draw = self._rng.random(len(session))
        leaving = (state == 0) & (draw < TRANSITION)
        state[leaving] = 1 + (draw[leaving] * (STATES - 1) / TRANSITION).astype(np.int8)
        state[~leaving & (draw > 1 - 4 * TRANSITION)] = 0
        self._state[session, row] = state
        return state

    def _simulate_numeric_column(
        self,
        number: int,
        session: NDArray[np.int64],
        row: NDArray[np.int64],
        elapsed: NDArray[np.float64],
        place: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Returns readings of a numeric column: mean + offset of the row + daily cycle + noise + anomaly. Shapes (n,).

        Args:
            number: Index of the column among the numeric columns.
            session: Session numbers.
            row: Row numbers.
            elapsed: Seconds since the scenario's start.
            place: A number from 0 to 1 for each row, which determines its offset.
        """
        base, swing, sigma, spread, low, high, step = self._metrics[number]
        shift = 0.25 * number
        noise = PERSISTENCE * self._noise[number][session, row] + self._rng.standard_normal(len(session), np.float32)
        self._noise[number][session, row] = noise
        frozen, extra = self._anomalies.compute_anomalies(session, row, elapsed, self._rng)
        then = np.where(np.isnan(frozen), elapsed, frozen)
        day = np.sin(2 * np.pi * (then / self._day + self._phase[session] + shift))
        living = np.where(np.isnan(frozen), noise * sigma[session], 0.0)
        reading: NDArray[np.float64] = (
            base[session] + spread[session] * (place - 0.5) * 2 + swing[session] * (day + extra) + living
        )
        on_steps: NDArray[np.float64] = np.rint(reading / step[session]) * step[session]
        return np.clip(on_steps, low[session], high[session])

    def _read_text_column(
        self, number: int, session: NDArray[np.int64], row: NDArray[np.int64], state: NDArray[np.int8]
    ) -> list[bytes]:
        """Returns values of the text column with index `number`: the first has the state's name, others a zone."""
        if number > 0:  # the location of the row, which never changes
            return [b"zone %d" % (place % 7) for place in row.tolist()]
        names = self._names
        return [names[index] for index in (self.family[session] * STATES + state).tolist()]


class _SensorAnomalies:
    """Anomalies that rules can find: at most one row per session, for a third of the run."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        count = scenario.session_count
        has_anomaly = rng.random(count) < scenario.mix.anomalies
        self._any = bool(has_anomaly.any())
        self._kind = np.where(has_anomaly, rng.integers(STUCK, DRIFT + 1, count), 0)
        # One of the rows that are updated most, so that the anomaly has many readings.
        self._row = rng.integers(0, max(1, scenario.rows // 50), count)
        self._from = rng.uniform(0.3, 0.6, count) * scenario.duration_s
        self._length = scenario.duration_s / 3

    def compute_anomalies(
        self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64], rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the anomaly of each reading. All shapes are (n,).

        Args:
            session: Session numbers.
            row: Row numbers.
            elapsed: Seconds since the scenario's start.
            rng: Draws which readings are spikes.

        Returns:
            The second at which a stuck row froze (NaN if it is not stuck), and what to add to the reading, in units of
            the daily amplitude.
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


def _choose_quantities_per_session(
    family: NDArray[np.int64], columns: Sequence[Column], column: Column
) -> tuple[NDArray[np.float64], ...]:
    """Returns the fields of a numeric column's `PhysicalQuantity` as arrays, each with one element per session.

    A sensor that does not send the column gets any quantity, which is not used.

    Args:
        family: Index in `FAMILIES` of each session.
        columns: All declared columns.
        column: The numeric column.
    """
    kinds = [kind.get_quantity_of_column(columns, column) or next(iter(kind.metrics.values())) for kind in FAMILIES]
    table = np.array([astuple(kind) for kind in kinds])
    return tuple(table[family, part] for part in range(table.shape[1]))


def _convert_to_column_type(column: Column, reading: NDArray[np.float64]) -> list[Any]:
    """Returns values of the column's type: floats, or integers rounded and clipped to the column's range."""
    if column.json_type is JsonType.NUMBER:
        return reading.tolist()
    limit = 2 ** (column.bits - 1) - 1
    return np.rint(np.clip(reading, -min(limit, 2**53), min(limit, 2**53))).astype(np.int64).tolist()
