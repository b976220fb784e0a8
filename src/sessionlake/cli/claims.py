"""Claims all layers as soon as the processes that run them have paused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from sessionlake.errors import ClaimedByOtherProcessError
from sessionlake.ledger.retained import CLAIM as RETENTION
from sessionlake.operations.maintenance import CLAIM as MAINTENANCE
from sessionlake.operations.pipeline import Layer, claim_layers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.settings.model import Settings

_AGAIN_SECONDS = 1.0


@contextmanager
def lock_all_layers_for_block(
    spark: SparkSession, settings: Settings, wait_seconds: float, doing: str, *other_locks: str
) -> Iterator[None]:
    """Claims all layers, retention and maintenance during the block, so that no other process works on the tables.

    A claim is an exclusive lock or lease. Running layers must have been asked to pause before.

    Args:
        spark: The Spark session.
        settings: The configuration.
        wait_seconds: How long to wait until the running layers have paused.
        doing: What this process does, for example "reshards". Processes that are refused meanwhile show it in their
            error.
        other_locks: Names of further locks to hold.

    Raises:
        ClaimedByOtherProcessError: Another process has not released its claim in that time.
    """
    deadline = time.monotonic() + wait_seconds
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(
                    claim_layers(spark, settings, Layer.ALL, doing, RETENTION, MAINTENANCE, *other_locks)
                )
                break
            except ClaimedByOtherProcessError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN_SECONDS)
        yield
