"""All layers claimed, as soon as those that run have stood aside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from sessionlake.errors import ClaimedError
from sessionlake.ledger.retained import CLAIM as RETENTION
from sessionlake.operations.maintenance import CLAIM as MAINTENANCE
from sessionlake.operations.pipeline import Layer, claimed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.settings.model import Settings

_AGAIN_SECONDS = 1.0


@contextmanager
def all_claimed(spark: SparkSession, settings: Settings, seconds: float, doing: str, *others: str) -> Iterator[None]:
    """Claims all layers, and what is done beside them; those that run must have been asked to stand aside.

    Args:
        seconds: to wait for that.
        doing: what is done with them.
        others: what is claimed with them.

    Raises:
        ClaimedError: one has not, in that time.
    """
    deadline = time.monotonic() + seconds
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(claimed(spark, settings, Layer.ALL, doing, RETENTION, MAINTENANCE, *others))
                break
            except ClaimedError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN_SECONDS)
        yield
