"""`sessionlake publish`: sends a table's changes to Kafka."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sessionlake.cli.options import Say
from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError
from sessionlake.kafka.clients import require_reachable_broker
from sessionlake.ledger.entries import LedgerEntry
from sessionlake.publish.job import Publication, start
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.25


def require_publishable_table(settings: Settings, publication: Publication) -> None:
    """Checks, before Spark is started, that a table can be published to its topic.

    Raises:
        UsageError: The table cannot be published, or not to this topic.
        BrokerError: Kafka does not answer.
        LakeError: The table does not exist yet.
        MachineSetupError: The home cannot be written.
    """
    publication.require_allowed_by_settings(settings)
    lake = Lake(settings)
    lake.storage.require_writable_storage()
    if lake.is_known_missing(publication.table):
        raise LakeError(
            f"publish: {publication.table} does not exist yet in {settings.location}",
            fix="Fill it with `sessionlake run all --once`, or name another home with SESSIONLAKE_HOME",
        )
    require_reachable_broker(settings)


def publish_changes(
    spark: SparkSession,
    settings: Settings,
    publication: Publication,
    stop: threading.Event,
    *,
    once: bool,
    say: Say,
) -> None:
    """Sends a table's changes to Kafka until `stop` is set, or with `once` until all present changes are sent.

    Raises:
        SessionlakeError: The error that ended the streaming query.
    """
    sent = _SentMessagesCounter()
    doing = f"publishes {publication.table} to {publication.topic}"
    storage = Lake(settings).storage
    with storage.hold_exclusive_claim(spark, publication.name, doing):
        query = start(spark, settings, publication, once=once, on_batch=sent.add_ledger_entry)
        if not once:
            say(f"publishing {publication.table} to topic {publication.topic}; Ctrl-C stops")
        try:
            while not (ended := query.wait(_POLL_SECONDS)) and not stop.is_set():
                storage.require_claims_still_held()
        finally:
            query.stop()
    say(f"{'done' if once and ended else 'stopped'}: {sent}")


class _SentMessagesCounter:
    """Counts the messages that a run has sent, and the versions of the table that they come from."""

    def __init__(self) -> None:
        self._messages = 0
        self._first: int | None = None
        self._last: int | None = None

    def add_ledger_entry(self, entry: LedgerEntry) -> None:
        self._first = entry.source_from if self._first is None else self._first
        self._last = entry.source_to
        self._messages += entry.messages

    def __str__(self) -> str:
        if not self._messages:
            return "no changes to send"
        return f"{self._messages:,} messages sent, versions {self._first} to {self._last}"
