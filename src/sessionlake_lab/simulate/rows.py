"""Formats rows as JSON text from prepared templates, which is several times faster than a JSON encoder."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from sessionlake.protocol.columns import Column, JsonType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from sessionlake_lab.simulate.scenario import MessageMix, Scenario
    from sessionlake_lab.simulate.sensors import SensorWorld

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

Shape = tuple[bytes, "Callable[[tuple[Any, ...]], Any]"]


class RowFormatter:
    """Formats sensor readings as JSON objects.

    Args:
        world: Source of the readings.
        columns: Declared columns.
        mix: How often rows are partial, have nulls or undeclared columns.
        rng: The scenario's only source of randomness.
    """

    def __init__(
        self, world: SensorWorld, columns: Sequence[Column], mix: MessageMix, rng: np.random.Generator
    ) -> None:
        self._world, self._mix, self._rng = world, mix, rng
        self._full = _make_template(columns, range(len(columns)), None)
        self._partial = _make_partial_shapes(columns)
        self._null = [_make_shape(columns, range(len(columns)), null) for null in range(len(columns))][:_MAX_SHAPES]

    def format_full_rows(
        self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64]
    ) -> list[bytes]:
        """Returns rows with every column, as JSON text. The arguments are those of `World.read`, shape (n,)."""
        template = self._full
        return [template % reading for reading in self._read_sensors(session, row, elapsed)]

    def format_varied_rows(
        self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64]
    ) -> list[bytes]:
        """Returns rows of updates, as JSON text. Some are partial or have nulls or undeclared columns, by the mix."""
        readings = self._read_sensors(session, row, elapsed)
        template, mix = self._full, self._mix
        text = [template % reading for reading in readings]
        if mix.partial or mix.nulls:
            draw = self._rng.random(len(text))
            self._replace_by_other_shapes(text, readings, np.flatnonzero(draw < mix.partial), self._partial)
            self._replace_by_other_shapes(text, readings, np.flatnonzero(draw > 1 - mix.nulls), self._null)
        if mix.undeclared:
            for index in np.flatnonzero(self._rng.random(len(text)) < mix.undeclared).tolist():
                text[index] = text[index][:-1] + b"," + _UNDECLARED[int(self._rng.integers(len(_UNDECLARED)))]
        return text

    def _read_sensors(
        self, session: NDArray[np.int64], row: NDArray[np.int64], elapsed: NDArray[np.float64]
    ) -> list[tuple[Any, ...]]:
        return list(
            zip(self._world.make_row_ids(session, row), *self._world.read_sensors(session, row, elapsed), strict=True)
        )

    def _replace_by_other_shapes(
        self, text: list[bytes], readings: list[tuple[Any, ...]], where: NDArray[np.int64], shapes: list[Shape]
    ) -> None:
        chosen = self._rng.integers(0, len(shapes), len(where)).tolist()
        for index, number in zip(where.tolist(), chosen, strict=True):
            template, pick = shapes[number]
            text[index] = template % pick(readings[index])


def draw_hot_rows(scenario: Scenario, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Returns random row numbers, shape (count,). The larger `mix.hot` is, the more often low numbers occur."""
    draw = rng.random(count)
    if scenario.mix.hot != 1:
        draw **= scenario.mix.hot
    return (draw * scenario.rows).astype(np.int64)


def _make_partial_shapes(columns: Sequence[Column]) -> list[Shape]:
    """Returns the shapes of partial rows: each column alone, all columns but one, and only the row's id."""
    every = range(len(columns))
    alone = [[index] for index in every]
    without = [[other for other in every if other != index] for index in every]
    shapes = [*alone[: _MAX_SHAPES // 2], *without[: _MAX_SHAPES // 2], []]
    return [_make_shape(columns, included, None) for included in shapes]


def _make_shape(columns: Sequence[Column], included: Sequence[int], null: int | None) -> Shape:
    fields = [0, *(index + 1 for index in included if index != null)]
    pick: Callable[[tuple[Any, ...]], Any] = itemgetter(*fields)
    return _make_template(columns, included, null), pick


def to_json_name(name: str) -> bytes:
    """Returns a column's name as a JSON string."""
    return json.dumps(name, ensure_ascii=False).encode()


def _make_template(columns: Sequence[Column], included: Sequence[int], null: int | None) -> bytes:
    cells = [
        b"%b:%b"
        % (
            to_json_name(columns[i].name).replace(b"%", b"%%"),
            b"null" if i == null else _HOLES[columns[i].json_type],
        )
        for i in included
    ]
    return b"{" + b",".join([b'"id":"%b"', *cells]) + b"}"
