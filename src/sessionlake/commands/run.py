"""What `sessionlake run` is told to run."""

from __future__ import annotations

from sessionlake.config import Settings
from sessionlake.errors import UsageError
from sessionlake.pipeline import Layer
from sessionlake.processors.job import configured


def narrowed(settings: Settings, layer: Layer, processor: str | None) -> Settings:
    """The settings of what is to run: of several processors the one that is named.

    Raises:
        UsageError: a processor is to run and none is named, or one is named and another layer is to run.
        ConfigError: there is no such processor.
    """
    if layer is not Layer.PROCESSOR:
        if processor is not None:
            raise UsageError(f"run {layer} {processor}: only `run processor` takes a name")
        return settings
    if processor is None:
        known = ", ".join(own.name for own in settings.processors) or "none is configured"
        raise UsageError(
            f"run processor: name the one to run, as in `sessionlake run processor NAME`; there is: {known}"
        )
    return settings.model_copy(update={"processors": (configured(settings, processor),)})
