"""What `sessionlake run` is told to run."""

from __future__ import annotations

from sessionlake.cli.context import say
from sessionlake.errors import UsageError
from sessionlake.operations.pipeline import Layer
from sessionlake.processors.job import processor_settings
from sessionlake.settings.model import Settings


def narrowed(settings: Settings, layer: Layer, processor: str | None) -> Settings:
    """The settings of what is to run: of several processors the one that is named, else all.

    Raises:
        UsageError: processors are to run and there are none, or one is named and another layer is to run.
        ConfigError: there is no such processor.
    """
    if processor is not None:
        if layer is not Layer.PROCESSOR:
            raise UsageError(f"run {layer} {processor}: only `run processor` takes a name")
        return settings.model_copy(update={"processors": (processor_settings(settings, processor),)})
    if layer is Layer.PROCESSOR and not settings.processors:
        raise UsageError("run processor: none is configured; processors are named in sessionlake.yml")
    return settings


def tell(error: Exception) -> None:
    """Says what has stopped a processor while others go on."""
    say(f"error: {error}")
