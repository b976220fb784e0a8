"""`sessionlake feed infer`: proposes a feed, runs it on the messages that it was made from, and writes it as YAML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import ValidationError

from sessionlake.cli.feed_checks import propose_checksum
from sessionlake.errors import SessionlakeError, UsageError
from sessionlake.feeds.inference.propose import ProposedFeed, propose_feed, propose_feeds_that_split_messages
from sessionlake.feeds.inference.sample import parse_sample_of_records
from sessionlake.feeds.inference.yaml_text import format_feed_as_yaml
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.feeds.trial import FeedTrial
from sessionlake.settings.feeds import FeedSettings


def propose_configuration(records: Sequence[KafkaRecord], name: str, source: str, next_command: str) -> str:
    """Returns a configuration file with a feed for messages. Comments say what it does with them.

    Args:
        records: The messages.
        name: Name of their topic or file, from which the feed's name is made.
        source: The file or topic, for the comments.
        next_command: The command that tries the feed on the messages.

    Raises:
        UsageError: No feed can be proposed for the messages.
    """
    if not records:
        raise UsageError(
            f"{source} has no messages", fix="Name a file with one message per line, or a topic with messages"
        )
    topics = list(dict.fromkeys(record.topic for record in records))
    sample = parse_sample_of_records(records)
    proposal = propose_feed(sample, name, topics)
    if proposal is None or "uses" not in proposal.settings:
        proposal = _choose_proposal_with_message_parts(
            propose_feeds_that_split_messages(sample, name, topics), proposal, records
        )
    if proposal is None:
        raise UsageError(
            f"{source}: no rows were found in {len(records):,} messages, of which "
            f"{len(sample.messages):,} are JSON objects or arrays",
            why="`feed infer` proposes a feed only from JSON with objects that can be rows",
            fix="For JSON, name the rows by hand with `rows` and `each`. For Protobuf or Avro, write a feed with "
            "`uses` (gtfs_realtime, sparkplug) or `format`. For any other form, write a decoder class "
            "(docs/how-to/bring-your-own-messages.md)",
        )
    try:
        FeedSettings.model_validate(proposal.settings)
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise SessionlakeError(
            f"{source}: the feed that `feed infer` made from these messages is not valid ({first})",
            why="The messages have names or forms that it cannot write as a feed",
            fix="Write the feed by hand: docs/how-to/bring-your-own-messages.md has examples",
        ) from error
    proposal = propose_checksum(proposal, proposal.parts or sample, records)
    settings = FeedSettings.model_validate(proposal.settings)
    return format_feed_as_yaml(proposal, _build_comment_lines(proposal, settings, records, source, next_command))


def _choose_proposal_with_message_parts(
    proposals: Iterable[ProposedFeed], other: ProposedFeed | None, records: Sequence[KafkaRecord]
) -> ProposedFeed | None:
    """Returns the first feed that reads messages part by part, and as many of them as the other feed; else the other.

    A feed whose order refuses messages is tried without its order.
    """
    least = _count_refused_and_read_messages(other, records)
    for proposal in proposals:
        for one in (proposal, _remove_order_settings(proposal)):
            refused, read = _count_refused_and_read_messages(one, records)
            if refused <= least[0] and read >= max(1, least[1]):
                return one
    return other


def _count_refused_and_read_messages(proposal: ProposedFeed | None, records: Sequence[KafkaRecord]) -> tuple[int, int]:
    """Returns how many messages a feed refuses, and how many it reads; all are refused if there is no valid feed."""
    try:
        settings = None if proposal is None else FeedSettings.model_validate(proposal.settings)
    except ValidationError:
        settings = None
    if settings is None:
        return len(records), 0
    totals = _try_feed_on_messages(settings, records).totals
    refused = totals.refused.total()
    return refused, totals.messages - refused - totals.ignored


def _remove_order_settings(proposal: ProposedFeed) -> ProposedFeed:
    """Returns a feed without its order, so that messages apply as they arrive."""
    rules = [
        {key: value for key, value in rule.items() if key not in ("restart", "order")}
        for rule in proposal.settings["messages"]
    ]
    settings = {key: value for key, value in proposal.settings.items() if key != "order"} | {"messages": rules}
    return replace(
        proposal, settings=settings, seen={key: text for key, text in proposal.seen.items() if key != "order"}
    )


def _try_feed_on_messages(settings: FeedSettings, records: Sequence[KafkaRecord]) -> FeedTrial:
    """Returns the trial of a feed on all messages."""
    feed = settings.build()
    trial = FeedTrial([feed], only_feed=feed)
    for record in records:
        trial.read_message(record)
    return trial


def _build_comment_lines(
    proposal: ProposedFeed, settings: FeedSettings, records: Sequence[KafkaRecord], source: str, next_command: str
) -> list[str]:
    """Returns lines of comments: what the feed does with the messages, and what a reader should know."""
    trial = _try_feed_on_messages(settings, records)
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
    return [*lines, f"Next: check each line, copy it into the configuration, then run `{next_command}`."]
