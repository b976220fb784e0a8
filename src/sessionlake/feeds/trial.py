"""Tries feeds on messages one by one, and counts what was read, what was refused, and what the tables then have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sessionlake.feeds.events import DecodedMessage, MessageRefusal, SessionEvent
from sessionlake.feeds.feed import EventKind, Feed
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.reader import MAX_BYTES, KafkaRecord, find_feed_of_topic, read_record
from sessionlake.feeds.table import CheckFunction, SessionTable

MAX_ROWS = 200_000
"""Most rows of all tables in memory. Tables are not followed after the message that exceeds it."""
MAX_SESSIONS = 50_000
"""Most sessions whose tables are in memory."""
Session = tuple[str, int, str]
"""Topic, partition and session id."""


@dataclass(frozen=True)
class TrialOutcome:
    """The result of trying a message.

    Attributes:
        record: The message.
        feed: The feed that matches its topic; None if none does.
        found: Events of the message, or its fault; None without a feed.
        findings: What is wrong with the message beside a refusal, such as a gap, in a few words each.
        quarantined: For sessions whose part of the message goes to quarantine: the reason.
    """

    record: KafkaRecord
    feed: Feed | None
    found: DecodedMessage | MessageRefusal | None
    findings: tuple[str, ...] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_refused(self) -> bool:
        """True if the message goes to quarantine, or no feed reads it."""
        return not isinstance(self.found, DecodedMessage)


@dataclass
class TrialTotals:
    """Counts of a trial.

    Attributes:
        messages: Number of messages.
        ignored: Number of messages that a rule ignores.
        rules: Number of messages that each rule has read, by feed and number of the rule.
        refused: Number of refused messages by feed and reason.
        unmatched: Number of messages by topic, for topics that match no feed.
        gaps: Number of gaps between messages.
        duplicates: Number of messages that came again.
        orphans: Number of updates before the first snapshot of their session, if sessions must start with one. If the
            feed holds them back: only those for which no snapshot came in time.
        held: Number of messages that were held back until the first snapshot of their session.
        checks: Number of checked checksums.
        checks_failed: Number of checksums that did not fit the table.
        presence_failed: Number of changes whose row was there against `expect`, or missing against it, and of failures
            of a decoder's `complete` and `narrow`.
        followed: Number of messages after which tables were no longer followed, because they have too many rows; None
            if all were followed.
    """

    messages: int = 0
    ignored: int = 0
    rules: Counter[tuple[str, int]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    unmatched: Counter[str] = field(default_factory=Counter)
    gaps: int = 0
    duplicates: int = 0
    orphans: int = 0
    held: int = 0
    checks: int = 0
    checks_failed: int = 0
    presence_failed: int = 0
    followed: int | None = None

    @property
    def count_of_failures(self) -> int:
        """Number of refused messages, and of failed checks and presence."""
        refused = self.refused.total() + self.unmatched.total()
        return refused + self.checks_failed + self.presence_failed


_Chain = tuple[str, int, str | None]


class FeedTrial:
    """Reads messages by feeds, and follows the tables of their sessions.

    Args:
        feeds: The feeds. The first whose pattern matches a topic reads its messages.
        only_feed: The feed that reads all messages, whatever their topic; None to choose by topic.
        feed_of_bare_values: The feed that reads messages whose line does not name a topic; None to choose by topic.
        unbound: Names of the feeds whose sessions may start with any message, not only with a snapshot.
        max_bytes: Longest value allowed.
        payload: Reads Avro and Protobuf; required for messages of feeds that have them.

    Attributes:
        totals: Counts of all messages so far.
        tables: Tables by session.

    Raises:
        ConfigError: A function of `check` cannot be imported.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        *,
        only_feed: Feed | None = None,
        feed_of_bare_values: Feed | None = None,
        unbound: Collection[str] = (),
        max_bytes: int = MAX_BYTES,
        payload: PayloadReader | None = None,
    ) -> None:
        self._feeds, self._only, self._bare, self._max_bytes = feeds, only_feed, feed_of_bare_values, max_bytes
        self._payload = payload
        self._bound = {feed.name for feed in feeds if _has_rule_for_snapshots(feed)} - {*unbound}
        self._checks: dict[str, CheckFunction | None] = {
            feed.name: feed.check.load() if feed.check is not None and feed.check.load is not None else None
            for feed in feeds
        }
        self._chains: dict[_Chain, int] = {}
        self._complete: set[Session] = set()
        self._rows = 0
        self.totals = TrialTotals()
        self.tables: dict[Session, SessionTable] = {}

    @property
    def count_of_held_messages(self) -> int:
        """Number of messages that are still held back."""
        return sum(len(table.held) for table in self.tables.values())

    def get_feed(self, name: str) -> Feed:
        """Returns the feed of this name, which must exist."""
        return next(feed for feed in self._feeds if feed.name == name)

    def read_message(self, record: KafkaRecord, *, has_no_topic: bool = False) -> TrialOutcome:
        """Reads a message, applies its events, and counts it. `has_no_topic` is true if it does not name a topic."""
        totals = self.totals
        totals.messages += 1
        feed = self._only or (self._bare if has_no_topic else None) or find_feed_of_topic(self._feeds, record.topic)
        if feed is None:
            totals.unmatched[record.topic] += 1
            return TrialOutcome(record, None, None)
        found = read_record(feed, record, max_bytes=self._max_bytes, payload=self._payload)
        if isinstance(found, MessageRefusal):
            totals.refused[feed.name, found.reason.value] += 1
            return TrialOutcome(record, feed, found)
        for number in found.rules:
            totals.rules[feed.name, number] += 1
        totals.ignored += all(event.kind is EventKind.IGNORE for event in found.events)
        findings = [text for event in found.events for text in self._apply_event_to_its_table(feed, record, event)]
        return TrialOutcome(record, feed, found, tuple(findings))

    def _apply_event_to_its_table(self, feed: Feed, record: KafkaRecord, event: SessionEvent) -> list[str]:
        """Applies an event to its session's table. Returns texts that say what is wrong; none if nothing is."""
        findings = (
            []
            if event.chain is None
            else self._advance_chain_and_find_gap(event, (record.topic, record.partition, event.chain))
        )
        if event.kind is EventKind.IGNORE or self.totals.followed is not None:
            return findings
        session = (record.topic, record.partition, event.session)
        table = self.tables.setdefault(session, SessionTable(feed))
        if event.kind is EventKind.SNAPSHOT and session not in self._complete:
            self._complete.add(session)
            table.check = self._checks[feed.name]
        is_early = event.kind is EventKind.UPDATE and session not in self._complete and feed.name in self._bound
        self.totals.orphans += is_early and not feed.hold
        before, rows = _list_counts_of_table(table), len(table.rows)
        findings += self._apply_event_and_count_held(table, event)
        self._rows += len(table.rows) - rows
        if event.kind is EventKind.END:
            self._rows -= len(table.rows)
            table.rows = {}
        if self._rows > MAX_ROWS or len(self.tables) > MAX_SESSIONS:
            self.totals.followed = self.totals.messages
        return findings + self._add_table_counts_to_totals(
            session, [now - past for now, past in zip(_list_counts_of_table(table), before, strict=True)]
        )

    def _apply_event_and_count_held(self, table: SessionTable, event: SessionEvent) -> list[str]:
        """Applies an event to its table. Returns what happened to messages that wait for the first snapshot."""
        held, unapplied = len(table.held), table.unapplied
        table.apply_event(event)
        dropped, is_held = table.unapplied - unapplied, bool(table.held) and table.held[-1] is event
        self.totals.held += is_held
        self.totals.orphans += dropped
        texts = ["held: it waits for the first snapshot of its session"] if is_held else []
        if dropped:
            texts.append(f"before the first snapshot: {dropped} held messages go to quarantine")
        elif held and not table.held:
            texts.append(f"snapshot: {held} held messages are judged after it")
        return texts

    def _add_table_counts_to_totals(self, session: Session, increases: Sequence[int]) -> list[str]:
        """Adds the increase of a table's counts to the totals, and returns what of it is wrong.

        Args:
            session: The session of the table.
            increases: Added gaps, duplicates, checks, failed checks, and changes whose presence was not as expected.
        """
        gaps, duplicates, checks, checks_failed, presence_failed = increases
        totals = self.totals
        totals.gaps += gaps
        totals.duplicates += duplicates
        totals.checks += checks
        totals.checks_failed += checks_failed
        if session not in self._complete:  # without a snapshot, rows are missing by nature
            presence_failed = 0
        totals.presence_failed += presence_failed
        texts = {
            "gap: messages are missing before this one": gaps,
            "duplicate: its seq was already applied": duplicates,
            "checksum: the table does not have the checksum in the message": checks_failed,
            "presence: rows are not as `expect` says, or the decoder cannot complete them": presence_failed,
        }
        return [text for text, count in texts.items() if count]

    def _advance_chain_and_find_gap(self, event: SessionEvent, chain: _Chain) -> list[str]:
        """Advances the last seq of a chain. Returns the text of a gap in it, if there is one."""
        last = self._chains.get(chain)
        if event.seq is None or (last is not None and event.seq <= last and not event.restart):
            return []
        self._chains[chain] = event.seq
        if last is None or event.after is None or event.restart:
            return []
        is_gap = event.after != last if event.is_link else event.after > last
        self.totals.gaps += is_gap
        return [f"gap: messages of chain {chain[-1]} are missing before this one"] if is_gap else []


def _list_counts_of_table(table: SessionTable) -> tuple[int, int, int, int, int]:
    """Returns the counts of gaps, duplicates, checks, failed checks, and changes of unexpected presence."""
    return table.gaps, table.duplicates, table.checks, table.checks_failed, table.presence_failed


def _has_rule_for_snapshots(feed: Feed) -> bool:
    """Returns True if a rule of the feed reads snapshots."""
    return any(rule.kind is EventKind.SNAPSHOT for rule in feed.rules)
