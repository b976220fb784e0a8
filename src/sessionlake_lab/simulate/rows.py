"""Formats rows as JSON text from prepared templates, which is several times faster than a JSON encoder."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from sessionlake.protocol.columns import Column, JsonType
from sessionlake_lab.simulate.sensors import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from sessionlake_lab.simulate.scenario import MessageMix, Scenario
    from sessionlake_lab.simulate.sensors import SimulatedSensors

_HOLES = {JsonType.BOOLEAN: b"%b", JsonType.INTEGER: b"%d", JsonType.NUMBER: b"%.2f", JsonType.STRING: b'"%b"'}
# Limit on the number of shapes of partial rows, for tables with many columns.
_MAX_SHAPES = 16
# Undeclared columns with every kind of JSON value: nested, larger than int64, and not ASCII.
_UNDECLARED = tuple(
    json.dumps(extra, ensure_ascii=False)[1:].encode()
    for extra in (
        {"firmware": "2.1.4"},
        {"x_site": {"rack": 3, "aisle": "B", "free": None}},
        {"x_rssi": -61.5, "x_battery": 97},
        {"x_note": 'défaut of "probe" 3 \\ 温度'},
        {"x_tags": ["new", 1, True, [], {}]},
        {"x_serial": 12345678901234567890123},
        {"x_calibrated": None},
    )
)

RowShape = tuple[bytes, "Callable[[tuple[Any, ...]], Any]"]
"""A row's JSON text with a placeholder per value, and a function that takes these values from a reading."""


class RowFormatter:
    """Formats sensor readings as JSON objects.

    Args:
        world: Source of the readings.
        columns: Declared columns.
        mix: How often rows are partial, have nulls or undeclared columns.
        rng: The scenario's only source of randomness.
    """

    def __init__(
        self, world: SimulatedSensors, columns: Sequence[Column], mix: MessageMix, rng: np.random.Generator
    ) -> None:
        self._world, self._mix, self._rng = world, mix, rng
        self._sent = [family.list_sent_column_indices(columns) for family in FAMILIES]
        self._full = [_make_row_shape(columns, sent, None) for sent in self._sent]
        self._partial = [_make_partial_row_shapes(columns, sent) for sent in self._sent]
        self._null = [[_make_row_shape(columns, sent, null) for null in sent][:_MAX_SHAPES] for sent in self._sent]
        self._all_columns = all(len(sent) == len(columns) for sent in self._sent)

    def format_full_rows(
        self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64]
    ) -> list[bytes]:
        """Returns rows with every column that the sensor sends, as JSON text.

        The arguments are those of `SimulatedSensors.read_sensors`.
        """
        return self._format_readings(session, self._read_sensors_as_tuples(session, row, elapsed))

    def format_varied_rows(
        self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64]
    ) -> list[bytes]:
        """Returns rows of updates as JSON text. Some are partial, or have nulls or undeclared columns, as `mix` says.

        The arguments are those of `SimulatedSensors.read_sensors`.
        """
        readings = self._read_sensors_as_tuples(session, row, elapsed)
        mix, text = self._mix, self._format_readings(session, readings)
        if mix.partial or mix.nulls:
            draw, families = self._rng.random(len(text)), self._world.family[session].tolist()
            for where, shapes in ((draw < mix.partial, self._partial), (draw > 1 - mix.nulls, self._null)):
                self._replace_rows_by_other_shapes(
                    text, readings, np.flatnonzero(where), [shapes[one] for one in families]
                )
        if mix.undeclared:
            for index in np.flatnonzero(self._rng.random(len(text)) < mix.undeclared).tolist():
                text[index] = text[index][:-1] + b"," + _UNDECLARED[int(self._rng.integers(len(_UNDECLARED)))]
        return text

    def _read_sensors_as_tuples(
        self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64]
    ) -> list[tuple[Any, ...]]:
        """Returns readings as tuples: the row id, then a value for each declared column."""
        return list(
            zip(self._world.make_row_ids(session, row), *self._world.read_sensors(session, row, elapsed), strict=True)
        )

    def _format_readings(self, session: NDArray[np.int64], readings: list[tuple[Any, ...]]) -> list[bytes]:
        """Returns each reading as JSON text, with all columns that the session's sensor sends."""
        if self._all_columns:
            template, _ = self._full[0]
            return [template % reading for reading in readings]
        shapes = map(self._full.__getitem__, self._world.family[session].tolist())
        return [template % pick(reading) for (template, pick), reading in zip(shapes, readings, strict=True)]

    def _replace_rows_by_other_shapes(
        self, text: list[bytes], readings: list[tuple[Any, ...]], where: NDArray[np.int64], shapes: list[list[RowShape]]
    ) -> None:
        """Replaces the JSON text of some readings by text of another shape.

        Args:
            text: JSON text of all readings, which is changed.
            readings: All readings.
            where: Indices of the readings whose text is replaced.
            shapes: For each reading, the shapes of which one is chosen at random.
        """
        chosen = self._rng.integers(0, max(map(len, shapes), default=1), len(where)).tolist()
        for index, number in zip(where.tolist(), chosen, strict=True):
            own = shapes[index]
            template, pick = own[number % len(own)]
            text[index] = template % pick(readings[index])


def draw_skewed_row_numbers(scenario: Scenario, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Returns random row numbers, shape (count,). The larger `mix.hot` is, the more often low numbers occur."""
    draw = rng.random(count)
    if scenario.mix.hot != 1:
        draw **= scenario.mix.hot
    return (draw * scenario.rows).astype(np.int64)


def _make_partial_row_shapes(columns: Sequence[Column], sent: Sequence[int]) -> list[RowShape]:
    """Returns the shapes of partial rows: each column alone, all columns but one, and only the row's id.

    Args:
        columns: Declared columns.
        sent: Indices in `columns` of those that the sensor sends.
    """
    alone = [[index] for index in sent]
    without = [[other for other in sent if other != index] for index in sent]
    shapes = [*alone[: _MAX_SHAPES // 2], *without[: _MAX_SHAPES // 2], []]
    return [_make_row_shape(columns, included, None) for included in shapes]


def _make_row_shape(columns: Sequence[Column], included: Sequence[int], null: int | None) -> RowShape:
    """Returns the shape of rows with some of the columns.

    Args:
        columns: Declared columns.
        included: Indices in `columns` of the columns in the row.
        null: Index of the column that is null; None if none is.
    """
    fields = [0, *(index + 1 for index in included if index != null)]
    pick: Callable[[tuple[Any, ...]], Any] = itemgetter(*fields)
    return _make_row_template(columns, included, null), pick


def encode_column_name_as_json(name: str) -> bytes:
    """Returns a column's name as a JSON string."""
    return json.dumps(name, ensure_ascii=False).encode()


def _make_row_template(columns: Sequence[Column], included: Sequence[int], null: int | None) -> bytes:
    """Returns the JSON text of a row with a placeholder for its id and each value.

    Args:
        columns: Declared columns.
        included: Indices in `columns` of the columns in the row.
        null: Index of the column that is null; None if none is.
    """
    cells = [
        b"%b:%b"
        % (
            encode_column_name_as_json(columns[i].name).replace(b"%", b"%%"),
            b"null" if i == null else _HOLES[columns[i].json_type],
        )
        for i in included
    ]
    return b"{" + b",".join([b'"id":"%b"', *cells]) + b"}"
