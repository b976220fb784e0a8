"""Decides how a table is shown on a terminal that is too narrow for it. Pure: gets texts and a width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Cells = Sequence[Sequence[str]]
_BETWEEN = 3
"""Number of characters between two columns."""
_EDGES = 2
"""Number of characters at both ends of a line."""
_LEGIBLE = 20
"""A longer text stays legible if it is folded into lines of this width."""


def does_table_fit_terminal_width(names: Sequence[str], cells: Cells, width: int) -> bool:
    """Returns True if a terminal of this width can show the table without breaking names, numbers or words.

    Args:
        names: Names of the columns.
        cells: Rows of the table, as texts.
        width: Width of the terminal, in characters.
    """
    return (
        _compute_table_width([_compute_legible_column_width(texts) for texts in zip(names, *cells, strict=True)])
        <= width
    )


def transpose_table(names: Sequence[str], cells: Cells, width: int) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yields a table with rows and columns exchanged, as one or more tables that each fit the terminal's width.

    Args:
        names: Names of the columns, which become the first column of each result.
        cells: Rows of the table, as texts. Each becomes a column.
        width: Width of the terminal, in characters.

    Yields:
        Names of the columns and rows of a table.
    """
    left = list(cells)
    while left:
        count = 1
        while count < len(left) and _do_columns_fit_terminal_width(names, left[: count + 1], width):
            count += 1
        first, *others = zip(names, *left[:count], strict=True)
        yield list(first), [list(row) for row in others]
        left = left[count:]


def _do_columns_fit_terminal_width(names: Sequence[str], rows: Cells, width: int) -> bool:
    return _compute_table_width([_measure_longest_text(names), *map(_measure_longest_word, rows)]) <= width


def _compute_legible_column_width(texts: Sequence[str]) -> int:
    name, *values = texts
    return max(
        _measure_longest_text([name]), min(_measure_longest_text(values), _LEGIBLE), _measure_longest_word(values)
    )


def _measure_longest_word(texts: Sequence[str]) -> int:
    return _measure_longest_text([word for text in texts for word in text.split()])


def _measure_longest_text(texts: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)


def _compute_table_width(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * (len(widths) - 1) + _EDGES
