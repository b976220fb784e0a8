"""`sessionlake verify bronze`: compares bronze with the messages that Kafka still holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sessionlake.bronze.verify import BronzeVerification, compare_bronze_with_kafka
from sessionlake.cli.options import Say
from sessionlake.delta.lake import Lake, create_storage
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.errors import LakeError
from sessionlake.kafka.clients import require_reachable_broker
from sessionlake.ledger.retained import CLAIM
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN_NAMES = 10


def require_comparable_bronze(settings: Settings) -> None:
    """Checks, before Spark is started, that bronze exists and can be compared with Kafka.

    Raises:
        LakeError: Bronze does not exist yet, or does not read Kafka.
        BrokerError: Kafka does not answer.
    """
    if Lake(settings).is_known_missing(MESSAGES):
        raise LakeError(
            f"verify bronze: {MESSAGES} does not exist yet in {settings.location}",
            fix="Fill it with `sessionlake run bronze --once`, or name another home with SESSIONLAKE_HOME",
        )
    if settings.bronze.source is not SourceKind.KAFKA:
        raise LakeError(
            f"verify bronze: bronze.source is {settings.bronze.source}, and only messages from Kafka "
            "can be compared with their source",
            fix="Use `sessionlake doctor`, which checks that no offsets are missing in bronze",
        )
    require_reachable_broker(settings)


def verify_bronze(spark: SparkSession, settings: Settings, say: Say) -> bool:
    """Compares bronze with Kafka, and tells the user the result and what could not be compared.

    Returns True if they are equal.
    """
    with create_storage(settings).hold_exclusive_claim(spark, CLAIM, "verifies bronze"):
        result = compare_bronze_with_kafka(spark, settings)
    for line in describe_bronze_comparison(result):
        say(line)
    return result.comparison.first_difference is None


def describe_bronze_comparison(result: BronzeVerification) -> Iterator[str]:
    """Yields lines of text that tell the result of a comparison of bronze with Kafka."""
    comparison, overlap = result.comparison, result.overlap
    if comparison.first_difference is not None:
        what = f"{comparison.different} of {comparison.messages} messages differ from Kafka's"
        yield f"{what}; the first difference:\n  {comparison.first_difference}"
    elif comparison.messages:
        yield f"exact: {comparison.messages} messages of {len(overlap.ranges)} topic-partitions, as Kafka holds them"
    else:
        yield "nothing to compare: Kafka no longer holds any message that bronze has"
    if result.removed:
        yield f"not compared: {result.removed} messages in bronze that Kafka no longer holds"
    if overlap.gone:
        yield f"  of topics that were deleted: {_shorten_list_of_names(overlap.gone)}"
    if overlap.recreated_topics:
        yield f"  of topics that were recreated, and not read since: {_shorten_list_of_names(overlap.recreated_topics)}"
    if result.gone:
        yield f"not compared: {result.gone} messages that maintain.retention has removed from bronze"
    if comparison.erased:
        yield f"not compared: {comparison.erased} messages with sessions that were forgotten"
    if overlap.unread:
        yield f"not compared: {overlap.unread} offsets in Kafka that bronze has not read"


def _shorten_list_of_names(names: tuple[str, ...]) -> str:
    more = f", and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{', '.join(names[:_SHOWN_NAMES])}{more}"
