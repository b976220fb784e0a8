"""Prints rows to standard output: as a table for people, or as JSON lines or CSV for programs.

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

from sessionlake.cli.layout import does_table_fit_terminal_width, transpose_table
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
    """The format in which a command prints rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def show_rows(names: Sequence[str], rows: Rows, form: OutputFormat, out: TextIO | None = None) -> None:
    """Prints rows in the chosen format.

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
        shown = _choose_escape_function(out)
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(map(shown, names))
        writer.writerows([shown(_format_value_as_text(value, "")) for value in row] for row in rows)
    else:
        _print_rows_for_people(names, rows, out)


def write_line(text: str) -> None:
    """Prints a line that a program may read, such as a path. Invisible characters are escaped only on a terminal."""
    sys.stdout.write(f"{_choose_escape_function(sys.stdout)(text)}\n")


def write_text(text: str) -> None:
    """Prints text for people. Invisible characters are escaped."""
    sys.stdout.write(f"{escape_invisible(text)}\n")


def _choose_escape_function(out: TextIO) -> Callable[[str], str]:
    return escape_invisible if out.isatty() else escape_surrogates


def show_table(table: pa.Table, form: OutputFormat, *, bytes_as_base64: bool = False) -> None:
    """Prints the rows of an Arrow table in the chosen format.

    Args:
        table: The table.
        form: The format.
        bytes_as_base64: True to print all bytes as Base64. Otherwise bytes that are UTF-8 are printed as text.
    """
    names, rows = convert_to_names_and_rows(table)
    show_rows(
        names, [[_encode_bytes_as_base64(value) for value in row] for row in rows] if bytes_as_base64 else rows, form
    )


def _encode_bytes_as_base64(value: Any) -> Any:
    """Returns bytes, also those inside lists, as Base64 text. Other values are returned unchanged."""
    if isinstance(value, list):
        return [_encode_bytes_as_base64(item) for item in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def convert_to_names_and_rows(table: pa.Table) -> tuple[list[str], Rows]:
    """Returns an Arrow table's column names, which may repeat, and its rows as Python values."""
    columns = [_convert_column_to_list(table.column(i)) for i in range(table.num_columns)]
    return table.column_names, list(zip(*columns, strict=True))


def _convert_column_to_list(column: pa.ChunkedArray) -> list[Any]:
    """Returns the values of an Arrow column as a list. Maps become dictionaries."""
    from pyarrow.types import is_map

    from sessionlake.delta.storage.values import convert_to_python_values

    values = convert_to_python_values(column)
    return [None if value is None else dict(value) for value in values] if is_map(column.type) else values


def convert_to_json_value(value: Any) -> Any:
    """Returns a value in types that JSON has: for example times as ISO 8601 texts, bytes as text, NaN as a string."""
    if isinstance(value, dict):
        return {str(key): convert_to_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [convert_to_json_value(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, OutOfRangeTime | bytes):
        return _decode_bytes_as_utf8_or_base64(value) if isinstance(value, bytes) else int(value)
    if isinstance(value, Decimal | timedelta) or (isinstance(value, float) and not math.isfinite(value)):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    return value


def _decode_bytes_as_utf8_or_base64(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _format_value_as_text(value: Any, missing: str, *, hinted: bool = False) -> str:
    if hinted and isinstance(value, OutOfRangeTime):
        return str(value)
    simple = convert_to_json_value(value)
    if simple is None:
        return missing
    if isinstance(simple, bool | dict | list):
        return json.dumps(simple, ensure_ascii=False)
    return str(simple)


def _format_cell_for_people(value: Any) -> str:
    """Returns a value as the text of a table cell: on one line, with invisible characters escaped."""
    return escape_invisible(_format_value_as_text(value, "null", hinted=True).replace("\n", "\\n"))


def create_escaped_rich_text(text: str, style: str = "") -> Text:
    """Returns a text for Rich in which control characters and invisible characters are escaped."""
    from rich.text import Text

    return Text(escape_invisible(text), style)


def _print_rows_for_people(names: Sequence[str], rows: Rows, out: TextIO) -> None:
    console = create_console(out)
    print_table(console, names, rows)
    if not rows:
        console.print("no rows")


def print_table(console: Console, names: Sequence[str], rows: Rows, *, title: str | None = None) -> None:
    """Prints rows as a table for people. If it is too wide for a terminal, its rows become columns."""
    cells = [[_format_cell_for_people(value) for value in row] for row in rows] if console.is_terminal else []
    shown = [_format_cell_for_people(name) for name in names]
    if does_table_fit_terminal_width(shown, cells, console.width):
        console.print(create_terminal_table(names, rows, title=title))
        return
    for part in transpose_table(shown, cells, console.width):
        console.print(create_terminal_table(*part, title=title))
        title = None


def create_console(out: TextIO) -> Console:
    """Returns a Rich console that escapes invisible characters, and does not read brackets as markup.

    If the output is a file or a pipe, lines are not cut, folded or padded, because there is no width to fit into.
    """
    from rich.console import Console

    options: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}
    if out.isatty():
        console = Console(file=out, **options)
    else:
        console = Console(file=cast("TextIO", _StreamWithoutTrailingSpaces(out)), width=_UNBOUNDED, **options)
    console.push_render_hook(cast("Any", _EscapingRenderHook()))
    return console


class _EscapingRenderHook:
    """A hook of Rich that escapes invisible characters in drawn text, but not the console's own control sequences."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        """Wraps each object that is drawn, so that its text is escaped."""
        return [_RenderableWithEscapedText(one) for one in renderables]


class _RenderableWithEscapedText:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for piece in console.render(self._inner, options):
            yield piece if piece.control else Segment(escape_invisible(piece.text), piece.style)


class _StreamWithoutTrailingSpaces:
    """A text stream that removes spaces at the ends of lines. Rich writes whole lines to it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def create_terminal_table(names: Sequence[str], rows: Rows, *, title: str | None = None) -> Table:
    """Returns rows as a Rich table. Numbers are right-aligned, nothing is cut, line breaks in the data are escaped."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    shown = None if title is None else create_escaped_rich_text(title)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=shown, title_justify="left")
    for i, name in enumerate(names):
        numeric = any(isinstance(row[i], int | float) for row in rows)
        table.add_column(
            create_escaped_rich_text(name.replace("\n", "\\n")), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(create_escaped_rich_text(_format_cell_for_people(value)) for value in row))
    return table
