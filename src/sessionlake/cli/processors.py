"""A processor's table made once more: compared with the one there is, or put in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.cli.options import Say
from sessionlake.cli.run import narrowed
from sessionlake.cli.show import OutputFormat, show
from sessionlake.delta.schemas.names import SILVER
from sessionlake.ledger.retained import CLAIM
from sessionlake.operations.pipeline import Layer, claimed
from sessionlake.operations.rebuild import processors
from sessionlake.processors import keyed
from sessionlake.processors.difference import Difference
from sessionlake.processors.job import processor_settings
from sessionlake.processors.verify import verify_product
from sessionlake.settings.model import Settings
from sessionlake.settings.processors import ProcessorSettings, ProductProcessor
from sessionlake.streaming.journal import require_uninterrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def cancel(spark: SparkSession, settings: Settings, name: str, say: Say) -> None:
    """Gives up a rebuild that was interrupted before it replaced the processor's table."""
    settings = narrowed(settings, Layer.PROCESSOR, name)
    with claimed(spark, settings, Layer.PROCESSOR, f"gives up a rebuild of processor {name}", CLAIM):
        processors.cancel(spark, settings, name)
    say(f"the interrupted rebuild is given up: {processor_settings(settings, name).into} is as it was before")


def rebuild(
    spark: SparkSession, settings: Settings, name: str, form: OutputFormat, say: Say, *, start_over: bool = False
) -> None:
    """Puts what the class makes of all of bronze in the place of the processor's table; with a key, of its source.

    Args:
        start_over: makes it again, instead of finishing a rebuild that was interrupted.
    """
    everything, settings = settings, narrowed(settings, Layer.PROCESSOR, name)
    with claimed(spark, settings, Layer.PROCESSOR, f"rebuilds processor {name}", CLAIM):
        if (own := processor_settings(settings, name)).key:
            require_uninterrupted(settings, SILVER)  # the source may be a table of silver's
            rows, different = keyed.rebuild(spark, settings, own)
            say(f"{own.into} is rebuilt from {own.source}: {rows} rows; beside the table before it: {different}")
            _show(different, form)
            return
        found = processors.rebuild(spark, settings, name, start_over=start_over)
    made = f"bronze.messages@v{found.version}: {found.messages} messages"
    if found.different is None:
        say(f"the interrupted rebuild of {found.table} from {made} is published; run it again for another")
    else:
        say(f"{found.table} is rebuilt from {made}; beside the table before it: {found.different}")
    if found.behind:
        say(f"{found.behind} of the messages are new to it")
    for reader in everything.processors:
        if reader.key and reader.source == found.table:
            say(to_be_rebuilt(reader))
    if found.different is not None:
        _show(found.different, form)


def to_be_rebuilt(own: ProcessorSettings) -> str:
    """What to do about a table with a key whose source was made anew: a stream of appended rows passes over that."""
    return f"{own.into} is of the rows before: `sessionlake rebuild {own.rebuilt_as}` makes it of those now"


def verify(spark: SparkSession, settings: Settings, own: ProductProcessor, say: Say) -> bool:
    """Says whether the table of a product with a source is what that makes of it; False if it is not."""
    settings = narrowed(settings, Layer.PROCESSOR, own.name)
    with claimed(spark, settings, Layer.PROCESSOR, f"verifies {own.into}"):
        found = verify_product(spark, settings, own)
    say(str(found))
    return isinstance(found, str) or found.first is None


def show_difference(spark: SparkSession, settings: Settings, name: str, form: OutputFormat, say: Say) -> None:
    """Shows how the table would differ, of the same history, if the class as it is now had made it."""
    settings = narrowed(settings, Layer.PROCESSOR, name)
    with claimed(spark, settings, Layer.PROCESSOR, f"compares processor {name}", CLAIM):
        own = processor_settings(settings, name)
        found = keyed.compared(spark, settings, own) if own.key else processors.compared(spark, settings, name)
    say(f"as the class is now, of the same history: {found}")
    _show(found, form)


def _show(found: Difference, form: OutputFormat) -> None:
    rows = [(one.change, *one.key.values(), one.before, one.after) for one in found.first]
    if rows:
        show(("change", *found.first[0].key, "before", "after"), rows, form)
