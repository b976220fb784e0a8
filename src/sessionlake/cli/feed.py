"""`sessionlake feed`: tries, tests and proposes feeds, which say how messages of any form are read. Needs no Spark."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from sessionlake.cli.context import Config, load_config, print_to_stderr
from sessionlake.cli.options import FeedFormat, ShownMessages
from sessionlake.cli.show import write_text
from sessionlake.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from sessionlake.cli.feed_trial import SilverTrialJudge
    from sessionlake.feeds.feed import Feed
    from sessionlake.feeds.lines import MessageOfLine
    from sessionlake.feeds.payload import PayloadReader
    from sessionlake.feeds.trial import FeedTrial
    from sessionlake.settings.model import Settings

feed_app = typer.Typer(no_args_is_help=True, help="Try, test and propose feeds, which read messages of your own form.")
_STDIN = "-"
_INFERRED = 10_000
"""Most messages from which a feed is inferred."""
_SUFFIXES = {".json", ".jsonl", ".ndjson", ".txt", ".log"}
"""Suffixes of files of messages. A name without one may be a topic."""
_LITERAL = re.compile(r"(?:[\w/-]|\\[^\w])+")
"""A pattern of topics that matches one name only."""


Form = Annotated[FeedFormat, typer.Option("--format", help="The format of the output.")]
File = Annotated[str | None, typer.Argument(metavar="FILE", help="A file of messages; `-` reads standard input.")]
OfTopic = Annotated[
    str | None, typer.Option("--topic", help="The topic of the file's messages; without FILE, the topic to read.")
]
Last = Annotated[int, typer.Option("--last", min=1, max=100_000, help="How many of the topic's last messages to read.")]
FeedName = Annotated[
    str | None, typer.Option("--feed", metavar="NAME", help="Read by this feed, whatever the topic is.")
]


@feed_app.command("try")
def feed_try(
    file: File = None,
    topic: OfTopic = None,
    last: Last = 100,
    name: FeedName = None,
    shown: Annotated[ShownMessages, typer.Option("--show", help="Which messages to show.")] = ShownMessages.ALL,
    form: Form = FeedFormat.TEXT,
    config: Config = None,
) -> None:
    """Show how the configured feeds read messages, row by row.

    The messages come from a file, or are the last ones of a topic. Nothing is written.

    Exits with 1 if a message is refused, or a checksum or `expect` fails.
    """
    settings = load_config(config)
    from sessionlake.cli.feed_text import print_feed_trial

    feeds = require_configured_feeds(settings)
    only = None if name is None else _require_feed_with_name(feeds, name)
    if file is None:
        if topic is None:
            raise UsageError(
                "feed try: neither a file nor a topic was named, so there are no messages to read",
                fix="Name a file, or a topic with --topic",
            )
        _require_matching_feed(feeds, only, topic)
        lines = _read_last_messages(settings, topic, last)
        trial, judged = _create_feed_trial_and_judge(settings, feeds, only)
        print_feed_trial(trial, judged, lines, shown, form, f"sessionlake feed try --topic {topic} --last {last}")
    else:
        if topic is not None:
            _require_matching_feed(feeds, only, topic)
        feed_of_bare_lines = only or (feeds[0] if len(feeds) == 1 and topic is None else None)
        trial, judged = _create_feed_trial_and_judge(settings, feeds, only, feed_of_bare_lines, is_live=file == _STDIN)
        with open_messages_file(file) as content:
            lines = _read_messages_file(content, topic, feed_of_bare_lines, settings.capture.max_message_bytes)
            print_feed_trial(trial, judged, lines, shown, form, f"sessionlake feed try {file}")
    if trial.totals.count_of_failures:
        raise typer.Exit(1)


def _create_feed_trial_and_judge(
    settings: Settings,
    feeds: Sequence[Feed],
    only_feed: Feed | None,
    feed_of_bare_lines: Feed | None = None,
    *,
    is_live: bool = False,
) -> tuple[FeedTrial, SilverTrialJudge]:
    """Returns what reads the messages by the feeds, and what judges them as silver does.

    Args:
        settings: The settings.
        feeds: The configured feeds.
        only_feed: The feed that reads all messages; None to choose by topic.
        feed_of_bare_lines: The feed of messages whose line names no topic; None to choose by topic.
        is_live: True to judge each message as soon as it is read.
    """
    from sessionlake.cli.feed_trial import BLOCK, SilverTrialJudge
    from sessionlake.feeds.trial import FeedTrial

    trial = FeedTrial(
        feeds,
        only_feed=only_feed,
        feed_of_bare_values=feed_of_bare_lines,
        unbound={feed.name for feed in settings.capture.feeds if feed.starts_with == "anything"},
        max_bytes=settings.capture.max_message_bytes,
        payload=_create_payload_reader(settings, feeds),
    )
    chosen = only_feed or feed_of_bare_lines
    return trial, SilverTrialJudge.create(
        settings.capture, None if chosen is None else chosen.name, block=1 if is_live else BLOCK
    )


@feed_app.command("test")
def feed_test(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files of frames.")],
    form: Form = FeedFormat.TEXT,
    config: Config = None,
) -> None:
    """Test the configured feeds with files of frames and expected rows.

    Exits with 1, and shows each difference, if a table or message is not as expected. The how-to "Bring your own
    messages" describes the files.
    """
    settings = load_config(config)
    from sessionlake.cli.feed_text import print_feed_test_results
    from sessionlake.feed_testing import read_feed_test_file, run_feed_test_file

    feeds = require_configured_feeds(settings)
    tests = [(file, read_feed_test_file(file)) for file in files]
    results = [(str(file), len(test.frames), run_feed_test_file(feeds, test, str(file))) for file, test in tests]
    print_feed_test_results(results, form)
    if any(differences for _, _, differences in results):
        raise typer.Exit(1)


@feed_app.command("infer")
def feed_infer(
    source: Annotated[
        str, typer.Argument(metavar="FILE|TOPIC", help="A file of messages, `-` for standard input, or a Kafka topic.")
    ],
    topic: Annotated[str | None, typer.Option("--topic", help="The topic of the file's messages.")] = None,
    last: Annotated[
        int, typer.Option("--last", min=1, max=_INFERRED, help="How many of the topic's last messages to read.")
    ] = 1000,
    config: Config = None,
) -> None:
    """Propose a feed for messages of unknown form, as YAML.

    The proposal is a configuration file. Comments say what it does with your messages. A file may have up to 10,000 of
    them. Check it with `feed try`.
    """
    from sessionlake.cli.feed_inference import propose_configuration

    path = Path(source)
    if source == _STDIN or path.exists() or path.suffix in _SUFFIXES or len(path.parts) > 1:
        from sessionlake.feeds.lines import parse_message_lines, read_lines

        name = topic or (path.stem if path.suffix in _SUFFIXES else path.name.split(".")[0]) or "messages"
        if source == _STDIN:
            name = topic or "messages"
        with open_messages_file(source) as file:
            lines = parse_message_lines(read_lines(file), name)
            records = [line.record for line in islice(lines, _INFERRED)]
        again = f"sessionlake feed try {source}"
    else:
        from sessionlake.kafka.last_messages import read_last_messages

        records, name = read_last_messages(load_config(config), source, last), source
        again = f"sessionlake feed try --topic {source}"
    write_text(propose_configuration(records, name, source, again).rstrip("\n"))


@feed_app.command("send")
def feed_send(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of messages; `-` reads standard input.")],
    topic: Annotated[str | None, typer.Option("--topic", help="The topic of messages whose line names none.")] = None,
    config: Config = None,
) -> None:
    """Send the messages of a file to Kafka, in order.

    They keep their keys, headers and times. A message whose line names no topic is sent to `--topic`, or to the topic
    of the only feed.
    """
    settings = load_config(config)
    from sessionlake.kafka.send_messages import send_messages

    feeds = [feed.build() for feed in settings.capture.feeds]
    feed_of_bare_lines = feeds[0] if len(feeds) == 1 and topic is None else None
    max_bytes = settings.capture.max_message_bytes
    if file != _STDIN:
        with open_messages_file(file) as content:  # a line without a topic is found before anything is sent
            for _ in _read_messages_file(content, topic, feed_of_bare_lines, max_bytes):
                pass
    with open_messages_file(file) as content:
        lines = _read_messages_file(content, topic, feed_of_bare_lines, max_bytes)
        sent = send_messages(settings, (line.record for line in lines))
    print_to_stderr(f"messages sent: {sent:,}")


def require_configured_feeds(settings: Settings) -> list[Feed]:
    """Returns the feeds that the configuration declares.

    Raises:
        ConfigError: It declares none.
    """
    feeds = [feed.build() for feed in settings.capture.feeds]
    if not feeds:
        raise ConfigError(
            "no feed is configured: capture.feeds is empty",
            why="Without a feed, messages must have the form that sessionlake itself defines",
            fix="Propose a feed from your messages with `sessionlake feed infer FILE > feed.yml`. Then "
            "copy it into sessionlake.yml, or name the file with --config",
        )
    return feeds


def _create_payload_reader(settings: Settings, feeds: Sequence[Feed]) -> PayloadReader | None:
    """Returns the reader for Avro and Protobuf messages; None if all feeds read JSON."""
    if not any(feed.reads_avro_or_protobuf for feed in feeds):
        return None
    from sessionlake.feeds.payload import PayloadReader
    from sessionlake.streaming.payloads import read_feeds_payload_format

    payload = read_feeds_payload_format(settings.capture)
    return None if payload is None else PayloadReader(payload)


def _require_feed_with_name(feeds: Sequence[Feed], name: str) -> Feed:
    found = next((feed for feed in feeds if feed.name == name), None)
    if found is None:
        names = [feed.name for feed in feeds]
        near = get_close_matches(name, names, 1, 0.4)
        hint = f"Did you mean --feed {near[0]}?" if near else "Name one of them with --feed"
        raise UsageError(f"there is no feed {name!r}; configured are {', '.join(names)}", fix=hint)
    return found


def _require_matching_feed(feeds: Sequence[Feed], chosen_feed: Feed | None, topic: str) -> None:
    if chosen_feed is not None or any(feed.topics.fullmatch(topic) for feed in feeds):
        return
    patterns = {feed.topics.pattern: feed.name for feed in feeds}
    near = get_close_matches(topic, patterns, 1, 0)
    listed = ", ".join(f"{name} ({pattern})" for pattern, name in patterns.items())
    raise UsageError(
        f"topic {topic!r} matches no feed; configured are {listed}",
        why=f"The nearest is {patterns[near[0]]}" if near else "",
        fix="Correct --topic or the feed's `topics`, or name the feed with --feed",
    )


def _choose_topic_of_lines_without_one(feed: Feed) -> str:
    """Returns the topic for messages whose line names none: the only topic that the feed reads, or the feed's name."""
    pattern = feed.topics.pattern
    return re.sub(r"\\(.)", r"\1", pattern) if _LITERAL.fullmatch(pattern) else feed.name


def _read_last_messages(settings: Settings, topic: str, last: int) -> Iterator[MessageOfLine]:
    from sessionlake.feeds.lines import MessageOfLine
    from sessionlake.kafka.last_messages import read_last_messages

    found = read_last_messages(settings, topic, last)
    if not found:
        print_to_stderr(f"topic {topic} has no messages")
    return (MessageOfLine(0, record, is_bare=False) for record in found)


def _read_messages_file(
    file: BinaryIO, topic: str | None, feed_of_bare_lines: Feed | None, max_bytes: int
) -> Iterator[MessageOfLine]:
    """Yields the messages of a file.

    Args:
        file: The open file.
        topic: Topic of bare lines: these have only a message's value, and name no topic.
        feed_of_bare_lines: If `topic` is None, the feed that gives bare lines their topic; None if it is not known.
        max_bytes: Largest size of a message's value in bytes. The rest of a much longer line is not read.

    Raises:
        UsageError: A line names no topic, and neither `topic` nor `feed_of_bare_lines` is given.
    """
    from sessionlake.feeds.lines import MAX_LINE, parse_message_lines, read_lines

    name = (
        topic
        if topic is not None or feed_of_bare_lines is None
        else _choose_topic_of_lines_without_one(feed_of_bare_lines)
    )
    for line in parse_message_lines(read_lines(file, max(MAX_LINE, 3 * max_bytes)), name or ""):
        if line.is_bare and name is None:
            raise UsageError(
                f"line {line.number} of the messages names no topic, and several feeds are configured",
                why="The topic of a message decides which feed reads it",
                fix="Add --topic NAME for all lines, or name the feed with --feed",
            )
        yield line


@contextmanager
def open_messages_file(file: str) -> Iterator[BinaryIO]:
    """Opens a file of messages for a block, or standard input for `-`.

    Raises:
        UsageError: The file cannot be read. The text suggests a file with a similar name.
    """
    if file == _STDIN:
        yield sys.stdin.buffer
        return
    path = Path(file)
    try:
        content = path.open("rb")
    except OSError as error:
        raise _create_unreadable_file_error(path, error) from None
    with content:
        try:
            yield content
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise _create_unreadable_file_error(path, error) from None


def _create_unreadable_file_error(path: Path, error: OSError) -> UsageError:
    try:
        names = [one.name for one in path.parent.iterdir()]
    except OSError:
        names = []
    near = [str(path.with_name(name)) for name in get_close_matches(path.name, names, 1) if name != path.name]
    fix = f"Did you mean {near[0]}?" if near else "Name a file with one message a line, or `-` for standard input"
    return UsageError(f"{path} cannot be read: {error.strerror or error}", fix=fix)
