"""Writes rows to standard output: as a table for people, or as JSON lines or CSV for programs.

No other module writes to standard output. Text for people goes through `escape_invisible`, so that no character of the
data reaches a terminal as a control sequence.
"""

from __future__ import annotations

import base64
import csv
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO, cast

from sessionlake.cli.layout import fits, transpose_table
from sessionlake.delta.storage.far_times import OutOfRangeTime
from sessionlake.visible import escape_invisible, escape_surrogates, to_json_line

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Rows = Sequence[Sequence[Any]]
_UNBOUNDED = 1 << 30


class OutputFormat(StrEnum):
    """The format of the output."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def show_rows(names: Sequence[str], rows: Rows, form: OutputFormat, out: TextIO | None = None) -> None:
    """Writes rows in a format.

    A table that is too wide for a terminal is turned: its rows become columns.

    JSON has one object per line. In it, a time is an ISO 8601 string, or a number of milliseconds outside the years 1
    to 9999. Bytes are text if they are UTF-8, otherwise Base64. NaN and infinities, which JSON lacks, are strings.

    CSV contains the data unchanged, unless a terminal reads it. Spreadsheets evaluate a cell that begins with = as a
    formula.
    """
    out = out or sys.stdout
    if form is OutputFormat.JSON:
        for row in rows:
            out.write(to_json_line(dict(zip(names, map(convert_to_json_value, row), strict=True))) + "\n")
    elif form is OutputFormat.CSV:
        shown = _choose_escaping(out)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(map(shown, names))
        writer.writerows([shown(_format_cell(value, "")) for value in row] for row in rows)
    else:
        _print_table(names, rows, out)


def write_line(text: str) -> None:
    """Writes a line that a program may read, such as a path. It is written unchanged, unless a terminal reads it."""
    sys.stdout.write(f"{_choose_escaping(sys.stdout)(text)}\n")


def write_text(text: str) -> None:
    """Writes lines for people to read."""
    sys.stdout.write(f"{escape_invisible(text)}\n")


def _choose_escaping(out: TextIO) -> Callable[[str], str]:
    return escape_invisible if out.isatty() else escape_surrogates


def show_table(table: pa.Table, form: OutputFormat, *, bytes_as_base64: bool = False) -> None:
    """Writes the rows of an Arrow table in a format.

    Args:
        table: The table.
        form: The format.
        bytes_as_base64: True to write all bytes as Base64. Otherwise bytes that are UTF-8 are written as text.
    """
    names, rows = convert_to_cells(table)
    show_rows(names, [[_encode_bytes(value) for value in row] for row in rows] if bytes_as_base64 else rows, form)


def _encode_bytes(value: Any) -> Any:
    """Returns bytes as Base64, also those in lists. Other values stay as they are."""
    if isinstance(value, list):
        return [_encode_bytes(item) for item in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def convert_to_cells(table: pa.Table) -> tuple[list[str], Rows]:
    """Returns a table's column names, which may repeat, and its rows as Python values."""
    columns = [_convert_column(table.column(i)) for i in range(table.num_columns)]
    return table.column_names, list(zip(*columns, strict=True))


def _convert_column(column: pa.ChunkedArray) -> list[Any]:
    """Returns a column's values. Maps become dictionaries."""
    from pyarrow.types import is_map

    from sessionlake.delta.storage.values import to_values

    values = to_values(column)
    return [None if value is None else dict(value) for value in values] if is_map(column.type) else values


def convert_to_json_value(value: Any) -> Any:
    """Converts a value to types that JSON has."""
    if isinstance(value, dict):
        return {str(key): convert_to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [convert_to_json_value(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, OutOfRangeTime | bytes):
        return _format_value(value) if isinstance(value, bytes) else int(value)
    if isinstance(value, Decimal | timedelta) or (isinstance(value, float) and not math.isfinite(value)):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    return value


def _format_value(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _format_cell(value: Any, missing: str, *, hinted: bool = False) -> str:
    if hinted and isinstance(value, OutOfRangeTime):
        return str(value)
    simple = convert_to_json_value(value)
    if simple is None:
        return missing
    if isinstance(simple, bool | dict | list):
        return json.dumps(simple, ensure_ascii=False)
    return str(simple)


def _format_for_people(value: Any) -> str:
    """Returns a value as the text of a table's cell on one line."""
    return escape_invisible(_format_cell(value, "null", hinted=True).replace("\n", "\\n"))


def make_visible_text(text: str, style: str = "") -> Text:
    """Returns a text for a table or grid, in which control and invisible characters are replaced by escapes."""
    from rich.text import Text

    return Text(escape_invisible(text), style)


def _print_table(names: Sequence[str], rows: Rows, out: TextIO) -> None:
    console = make_console(out)
    print_table(console, names, rows)
    if not rows:
        console.print("no rows")


def print_table(console: Console, names: Sequence[str], rows: Rows, *, title: str | None = None) -> None:
    """Prints rows as a table. If it is too wide for a terminal, its rows become columns."""
    cells = [[_format_for_people(value) for value in row] for row in rows] if console.is_terminal else []
    shown = [_format_for_people(name) for name in names]
    if fits(shown, cells, console.width):
        console.print(make_terminal_table(names, rows, title=title))
        return
    for part in transpose_table(shown, cells, console.width):
        console.print(make_terminal_table(*part, title=title))
        title = None


def make_console(out: TextIO) -> Console:
    """Returns a console that escapes invisible characters, and prints brackets instead of reading them as markup.

    If the output is a file or a pipe, lines are not cut, folded or padded, because there is no width to fit into.
    """
    from rich.console import Console

    options: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}
    if out.isatty():
        console = Console(file=out, **options)
    else:
        console = Console(file=cast("TextIO", _StreamWithoutPadding(out)), width=_UNBOUNDED, **options)
    console.push_render_hook(cast("Any", _EscapingRenderHook()))
    return console


class _EscapingRenderHook:
    """A render hook that escapes invisible characters in drawn text, but not the console's own control sequences."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        """Wraps the objects to draw."""
        return [_EscapedRenderable(one) for one in renderables]


class _EscapedRenderable:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for piece in console.render(self._inner, options):
            yield piece if piece.control else Segment(escape_invisible(piece.text), piece.style)


class _StreamWithoutPadding:
    """A text stream that removes spaces at the ends of lines. Rich writes whole lines to it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def make_terminal_table(names: Sequence[str], rows: Rows, *, title: str | None = None) -> Table:
    """Returns rows as a table for a terminal.

    Numbers are right-aligned, nothing is cut, and line breaks in the data are escaped.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = None if title is None else make_visible_text(title)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=shown, title_justify="left")
    for i, name in enumerate(names):
        numeric = any(isinstance(row[i], int | float) for row in rows)
        table.add_column(
            make_visible_text(name.replace("\n", "\\n")), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(make_visible_text(_format_for_people(value)) for value in row))
    return table
