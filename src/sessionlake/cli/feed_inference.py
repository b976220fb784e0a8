"""`sessionlake feed infer`: proposes a feed, tries it on the messages that it was made from, and writes it as YAML."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from sessionlake.cli.feed_checks import propose_checksum
from sessionlake.errors import SessionlakeError, UsageError
from sessionlake.feeds.inference.propose import Proposal, propose_feed
from sessionlake.feeds.inference.sample import take_sample
from sessionlake.feeds.inference.yaml_text import write_feed
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.feeds.trial import Trial
from sessionlake.settings.feeds import FeedSettings


def propose_configuration(records: Sequence[KafkaRecord], name: str, source: str, try_command: str) -> str:
    """Returns the text of a configuration file with a feed for the messages. Comments say what it does with them.

    Args:
        records: The messages.
        name: Name of their topic or file, from which the feed's name is made.
        source: The file or topic, for the comments.
        try_command: The command that tries the feed on the messages.

    Raises:
        UsageError: No feed can be proposed for the messages.
        SessionlakeError: The proposed feed would not be valid.
    """
    if not records:
        raise UsageError(
            f"{source} has no messages", fix="Name a file with one message a line, or a topic with messages"
        )
    topics = list(dict.fromkeys(record.topic for record in records))
    sample = take_sample(records)
    proposal = propose_feed(sample, name, topics)
    if proposal is None:
        raise UsageError(
            f"{source}: no rows were found in {len(records):,} messages; "
            f"{len(sample.messages):,} are JSON objects or arrays",
            why="A feed reads rows from JSON objects and arrays",
            fix="For Protobuf or Avro, write a feed with `uses` (gtfs_realtime, sparkplug) or `format`. Otherwise name "
            "other messages, or write a decoder class, which reads messages of any form",
        )
    try:
        FeedSettings.model_validate(proposal.settings)
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise SessionlakeError(
            f"{source}: the proposed feed is not valid ({first})",
            why="Fields of these messages have names or forms that inference does not know",
            fix="Write the feed by hand; docs/how-to/bring-your-own-messages.md has examples",
        ) from error
    proposal = propose_checksum(proposal, sample, records)
    settings = FeedSettings.model_validate(proposal.settings)
    return write_feed(proposal, _format_comments(proposal, settings, records, source, try_command))


def _format_comments(
    proposal: Proposal, settings: FeedSettings, records: Sequence[KafkaRecord], source: str, try_command: str
) -> list[str]:
    """Returns lines that say what the proposed feed did with the messages, and what the user should do next.

    Args:
        proposal: The proposed feed, with notes.
        settings: The proposed feed's settings.
        records: The messages.
        source: The file or topic of the messages.
        try_command: The command that tries the feed on the messages.
    """
    feed = settings.build()
    trial = Trial([feed], only=feed)
    for record in records:
        trial.read(record)
    totals, tables = trial.totals, trial.tables
    checks = f" Checksums: right {totals.checks - totals.checks_failed:,}, wrong {totals.checks_failed:,}."
    refused = totals.refused.total()
    read = totals.messages - refused - totals.ignored
    rows = sum(len(table.rows) for table in tables.values())
    counts = f"{read:,} read, {totals.ignored:,} ignored, {refused:,} refused"
    lines = [
        f"Proposed from {totals.messages:,} messages of {source}: {counts}.",
        f"Tables: sessions {len(tables):,}, rows {rows:,}, gaps {totals.gaps:,}, duplicates {totals.duplicates:,}."
        + checks * bool(totals.checks),
    ]
    lines += [f"Refused as {reason}: {count:,}." for (_, reason), count in sorted(totals.refused.items())]
    lines += [f"{note[0].upper()}{note[1:]}." for note in proposal.notes]
    return [*lines, f"Next: check each line, copy it into the configuration, then run `{try_command}`."]
