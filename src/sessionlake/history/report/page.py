"""The page: one HTML file with everything in it, which asks no network and runs no script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake import __version__
from sessionlake.delta.storage.reading import TableReader
from sessionlake.history.report import figures, words
from sessionlake.history.report.answers import answers
from sessionlake.history.report.batches import Batch
from sessionlake.history.report.contents import Contents, contents_of
from sessionlake.local.home import require_home
from sessionlake.settings.model import Settings
from sessionlake.visible import visible

if TYPE_CHECKING:
    from markupsafe import Markup

FILE = "report.html"
_OF_EACH_LAYER = 5


def write_report(reader: TableReader, settings: Settings, file: Path | None = None) -> Path:
    """Writes what the tables hold, and returns where.

    Args:
        file: `report.html` in the home unless given. One that is there is replaced, whole.

    Raises:
        LakeError: a table cannot be read.
        OSError: the file cannot be written.
    """
    file = file or require_home(settings) / FILE
    text = page(contents_of(reader, settings))
    partial_file = file.with_name(f".{file.name}.new")
    partial_file.write_text(text, encoding="utf-8")
    partial_file.replace(file)
    return file.resolve()


def _shown(value: Any) -> Any:
    """What the page has for a value: a text goes through `visible`, markup of the page itself stays."""
    return visible(value) if type(value) is str else value


def page(contents: Contents) -> str:
    """The page as text. All that comes from the data is escaped by the template's engine."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader,
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for shown in (
        words.amount,
        words.data_size,
        words.duration,
        words.layer_name,
        words.moment,
        words.name,
    ):
        environment.filters[shown.__name__] = shown
    environment.filters["number"] = words.number
    return environment.get_template("page.html").render(_parts(contents))


def _parts(contents: Contents) -> dict[str, Any]:
    """What the template names."""
    series = list(enumerate(contents.series))
    drawn: dict[str, Markup | None] = {
        "freshness": figures.freshness(contents.lags) if contents.lags else None,
        "throughput": figures.throughput(contents.throughput) if contents.throughput else None,
        "alerts": figures.alerts(contents.alerts) if contents.alerts else None,
    }
    return {
        "contents": contents,
        "answers": answers(contents),
        "latest": list(_latest(contents)),
        "figures": drawn,
        "rolling": [figures.rolling(one, f"rolling-{n}") if one.points else None for n, one in series],
        "minutes": [figures.minutes(one, f"minutes-{n}") if one.minutes else None for n, one in series],
        "version": __version__,
    }


def _latest(contents: Contents) -> Iterator[tuple[str, list[Batch]]]:
    """The last batches of each layer that has any, the newest first."""
    for status in contents.statuses:
        own = [batch for batch in contents.batches if batch.layer == status.layer]
        if own:
            yield status.layer, own[: -_OF_EACH_LAYER - 1 : -1]
