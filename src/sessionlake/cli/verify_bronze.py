"""Bronze compared with what Kafka still holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sessionlake.bronze.verify import VerifiedBronze, verify
from sessionlake.cli.options import Say
from sessionlake.delta.lake import Lake, storage_of
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.errors import LakeError
from sessionlake.kafka.clients import require_broker
from sessionlake.ledger.retained import CLAIM
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMED = 10


def preflight(settings: Settings) -> None:
    """Refuses what cannot work, before Spark is started for it.

    Raises:
        LakeError: there is no bronze yet.
        BrokerError: Kafka does not answer.
    """
    if Lake(settings).is_known_missing(MESSAGES):
        raise LakeError(
            f"verify: {MESSAGES} is not there yet in {settings.place}: fill it with `sessionlake run bronze --once`, "
            "or name another home with SESSIONLAKE_HOME"
        )
    if settings.bronze.source is not SourceKind.KAFKA:
        raise LakeError(f"verify: bronze reads {settings.bronze.source}; only with Kafka it can be compared so far")
    require_broker(settings)


def verify_bronze(spark: SparkSession, settings: Settings, say: Say) -> bool:
    """Says whether bronze holds what Kafka does, and what could not be compared; whether it does it returns."""
    with storage_of(settings).claim(spark, CLAIM, "verifies bronze"):
        found = verify(spark, settings)
    for line in told(found):
        say(line)
    return found.comparison.first_difference is None


def told(found: VerifiedBronze) -> Iterator[str]:
    """The outcome in words, line by line."""
    comparison, overlap = found.comparison, found.overlap
    if comparison.first_difference is not None:
        what = f"{comparison.different} of {comparison.messages} messages differ from Kafka's"
        yield f"{what}; the first difference:\n  {comparison.first_difference}"
    elif comparison.messages:
        yield f"exact: {comparison.messages} messages of {len(overlap.ranges)} topic-partitions, as Kafka holds them"
    else:
        yield "nothing to compare: of what bronze has, Kafka holds nothing any more"
    if found.removed:
        yield f"not compared: {found.removed} messages of bronze that Kafka holds no longer"
    if overlap.gone:
        yield f"  of topics that are gone: {_some(overlap.gone)}"
    if overlap.recreated_topics:
        yield f"  of topics that were made anew, and not read since: {_some(overlap.recreated_topics)}"
    if found.gone:
        yield f"not compared: {found.gone} messages that maintain.retention has removed from bronze"
    if comparison.erased:
        yield f"not compared: {comparison.erased} messages of sessions that were forgotten"
    if overlap.unread:
        yield f"not compared: {overlap.unread} offsets of Kafka that bronze has not read"


def _some(names: tuple[str, ...]) -> str:
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
