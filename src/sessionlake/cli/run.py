"""Chooses which processors `sessionlake run` runs, and reports those that fail."""

from __future__ import annotations

from sessionlake.cli.context import print_to_stderr
from sessionlake.errors import UsageError
from sessionlake.operations.pipeline import Layer
from sessionlake.processors.job import find_processor_settings
from sessionlake.settings.model import Settings


def keep_only_named_processor(settings: Settings, layer: Layer, processor: str | None) -> Settings:
    """Returns the settings with only the named processor, or unchanged if none is named.

    Args:
        settings: The configuration.
        layer: The layer to run.
        processor: Name of the processor; None for all.

    Raises:
        UsageError: No processor is configured, or a processor is named together with another layer.
        ConfigError: No processor has this name.
    """
    if processor is not None:
        if layer is not Layer.PROCESSOR:
            raise UsageError(
                f"run {layer} {processor}: only `run processor` takes a name", fix=f"Run `sessionlake run {layer}`"
            )
        return settings.model_copy(update={"processors": (find_processor_settings(settings, processor),)})
    if layer is Layer.PROCESSOR and not settings.processors:
        raise UsageError(
            "run processor: no processor is configured",
            fix="Declare one under `processors` in sessionlake.yml (docs/how-to/write-a-processor.md)",
        )
    return settings


def print_processor_error(error: Exception) -> None:
    """Tells the user which error stopped a processor while others continue."""
    print_to_stderr(f"error: {error}")
