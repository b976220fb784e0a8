"""Prints the status of the layers."""

from __future__ import annotations

from collections.abc import Sequence

from sessionlake.cli.show import OutputFormat, show_rows
from sessionlake.history.status import STATUS_COLUMNS, LayerStatus


def show_layer_statuses(layers: Sequence[LayerStatus], form: OutputFormat) -> None:
    """Prints the status of the layers. In the format for people, times are cut to seconds to fit a narrow terminal."""
    rows = [dict(zip(STATUS_COLUMNS, layer.to_tuple(), strict=True)) for layer in layers]
    if form is OutputFormat.TABLE:
        for row in rows:
            row["committed_at"] = row["committed_at"] and f"{row['committed_at']:%Y-%m-%d %H:%M:%S}Z"
    show_rows(STATUS_COLUMNS, [list(row.values()) for row in rows], form)
