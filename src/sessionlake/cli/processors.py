"""`rebuild processor:NAME` and `--diff`: rebuilds a processor's table, or shows what a rebuild would change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.cli.options import Say
from sessionlake.cli.run import keep_only_named_processor
from sessionlake.cli.show import OutputFormat, show_rows
from sessionlake.delta.schemas.names import SILVER
from sessionlake.ledger.retained import CLAIM
from sessionlake.operations.pipeline import Layer, claim_layers
from sessionlake.operations.rebuild import processors
from sessionlake.processors import keyed
from sessionlake.processors.difference import TableDifference
from sessionlake.processors.job import find_processor_settings
from sessionlake.processors.verify import verify_product
from sessionlake.settings.model import Settings
from sessionlake.settings.processors import ProcessorSettings, ProductProcessor
from sessionlake.streaming.journal import refuse_interrupted_operations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def cancel_processor_rebuild(spark: SparkSession, settings: Settings, name: str, say: Say) -> None:
    """Cancels an interrupted rebuild of a processor. Only possible before the rebuild has replaced the table."""
    settings = keep_only_named_processor(settings, Layer.PROCESSOR, name)
    with claim_layers(spark, settings, Layer.PROCESSOR, f"cancels a rebuild of processor {name}", CLAIM):
        processors.cancel_rebuild(spark, settings, name)
    say(f"the interrupted rebuild is cancelled: {find_processor_settings(settings, name).output_table} is unchanged")


def rebuild_processor(
    spark: SparkSession, settings: Settings, name: str, form: OutputFormat, say: Say, *, start_over: bool = False
) -> None:
    """Rebuilds a processor's table from all of bronze, or from its source table if the processor has a key.

    Shows the differences to the former table.

    Args:
        spark: The Spark session.
        settings: The configuration.
        name: The processor's name.
        form: The format in which differing rows are shown.
        say: Shows a line to the user.
        start_over: True to build everything again instead of finishing an interrupted rebuild.
    """
    everything, settings = settings, keep_only_named_processor(settings, Layer.PROCESSOR, name)
    with claim_layers(spark, settings, Layer.PROCESSOR, f"rebuilds processor {name}", CLAIM):
        if (processor := find_processor_settings(settings, name)).key:
            refuse_interrupted_operations(settings, SILVER)  # the source may be a table of silver
            rows, different = keyed.rebuild_table(spark, settings, processor)
            say(
                f"{processor.output_table} is rebuilt from {processor.source}: {rows} rows; compared with the former "
                f"table: {different}"
            )
            _show_differing_rows(different, form)
            return
        result = processors.rebuild_processor(spark, settings, name, start_over=start_over)
    made = f"bronze.messages@v{result.version}: {result.messages} messages"
    if result.different is None:
        say(f"the interrupted rebuild of {result.table} from {made} is finished; run the command again for a new one")
    else:
        say(f"{result.table} is rebuilt from {made}; compared with the former table: {result.different}")
    if result.behind:
        say(f"the processor had not read {result.behind} of the messages before")
    for reader in everything.processors:
        if reader.key and reader.source == result.table:
            say(describe_needed_rebuild(reader))
    if result.different is not None:
        _show_differing_rows(result.different, form)


def describe_needed_rebuild(processor: ProcessorSettings) -> str:
    """Returns a sentence that tells the user to rebuild the table of a processor with a key, whose source was rebuilt.

    Its stream reads only rows that are appended to the source, so it would not notice the rebuild.
    """
    return (
        f"{processor.output_table} was made of the former rows: run `sessionlake rebuild "
        f"{processor.rebuild_argument}` to update it"
    )


def verify_processor_table(spark: SparkSession, settings: Settings, processor: ProductProcessor, say: Say) -> bool:
    """Compares a product's table with a recomputation from its source, and tells the user the result.

    Returns True if they are equal, or if they cannot be compared yet.
    """
    settings = keep_only_named_processor(settings, Layer.PROCESSOR, processor.name)
    with claim_layers(spark, settings, Layer.PROCESSOR, f"verifies {processor.output_table}"):
        comparison = verify_product(spark, settings, processor)
    say(str(comparison))
    return isinstance(comparison, str) or comparison.first_difference is None


def show_rebuild_difference(spark: SparkSession, settings: Settings, name: str, form: OutputFormat, say: Say) -> None:
    """Shows the rows that a rebuild with the present code would add, remove or change in a processor's table."""
    settings = keep_only_named_processor(settings, Layer.PROCESSOR, name)
    with claim_layers(spark, settings, Layer.PROCESSOR, f"compares processor {name}", CLAIM):
        processor = find_processor_settings(settings, name)
        difference = (
            keyed.preview_keyed_table_rebuild(spark, settings, processor)
            if processor.key
            else processors.preview_processor_rebuild(spark, settings, name)
        )
    say(f"with the present code, from the same history: {difference}")
    _show_differing_rows(difference, form)


def _show_differing_rows(difference: TableDifference, form: OutputFormat) -> None:
    rows = [(one.change, *one.key.values(), one.before, one.after) for one in difference.first]
    if rows:
        show_rows(("change", *difference.first[0].key, "before", "after"), rows, form)
