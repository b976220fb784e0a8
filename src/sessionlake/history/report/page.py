"""Writes the report: one HTML file that needs no network and no scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake import __version__
from sessionlake.delta.storage.reading import TableReader
from sessionlake.history.report import figures, words
from sessionlake.history.report.answers import answer_report_questions
from sessionlake.history.report.batches import LayerBatch
from sessionlake.history.report.contents import ReportContents, read_report_contents
from sessionlake.local.home import create_home_folder
from sessionlake.settings.model import Settings
from sessionlake.visible import escape_invisible

if TYPE_CHECKING:
    from markupsafe import Markup

FILE = "report.html"
_OF_EACH_LAYER = 5


def write_report(reader: TableReader, settings: Settings, file: Path | None = None) -> Path:
    """Writes the report and returns its path.

    Args:
        reader: Reads the tables.
        settings: The configuration.
        file: The file to write; by default `report.html` in the home. An existing file is replaced atomically.

    Raises:
        LakeError: A table cannot be read.
        OSError: The file cannot be written.
    """
    file = file or create_home_folder(settings) / FILE
    text = render_page(read_report_contents(reader, settings))
    partial_file = file.with_name(f".{file.name}.new")
    partial_file.write_text(text, encoding="utf-8")
    partial_file.replace(file)
    return file.resolve()


def _escape_value_for_page(value: Any) -> Any:
    """Returns a value as the page shows it: invisible characters in texts become visible, HTML markup stays."""
    return escape_invisible(value) if type(value) is str else value


def render_page(contents: ReportContents) -> str:
    """Returns the report as HTML. The template engine escapes all texts from the data."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader,
        autoescape=True,
        finalize=_escape_value_for_page,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "amount": words.format_count_with_noun,
        "data_size": words.format_data_size,
        "duration": words.format_duration,
        "layer_name": words.format_layer_name,
        "moment": words.format_time,
        "name": words.format_name,
        "number": words.format_number,
    }
    return environment.get_template("page.html").render(_collect_template_values(contents))


def _collect_template_values(contents: ReportContents) -> dict[str, Any]:
    """Returns the values for the variables of the page's HTML template, by name."""
    series = list(enumerate(contents.series))
    drawn: dict[str, Markup | None] = {
        "freshness": figures.draw_freshness(contents.lags) if contents.lags else None,
        "throughput": figures.draw_throughput(contents.throughput) if contents.throughput else None,
        "alerts": figures.draw_alerts(contents.alerts) if contents.alerts else None,
    }
    return {
        "contents": contents,
        "answers": answer_report_questions(contents),
        "latest": list(_list_latest_batches(contents)),
        "figures": drawn,
        "rolling": [figures.draw_moving_average(one, f"rolling-{n}") if one.points else None for n, one in series],
        "minutes": [figures.draw_minute_statistics(one, f"minutes-{n}") if one.minutes else None for n, one in series],
        "version": __version__,
    }


def _list_latest_batches(contents: ReportContents) -> Iterator[tuple[str, list[LayerBatch]]]:
    """Yields the name of each layer that has batches, with its latest batches, the newest first."""
    for status in contents.statuses:
        own = [batch for batch in contents.batches if batch.layer == status.layer]
        if own:
            yield status.layer, own[: -_OF_EACH_LAYER - 1 : -1]
