"""Tests feeds with files of frames: `sessionlake feed test book.test.yml`, or a function for pytest.

    from sessionlake.feed_testing import check_feeds


    def test_book():
        check_feeds("book.test.yml", config="sessionlake.yml")

A file has messages, and the rows that the sessions' tables must have:

```yaml
topic: feed.book.a                  # of frames that do not name one
frames:
  - value: {type: snapshot, s: BTC, bids: [["1.50", "2"]]}
    rows: {BTC: [{side: bid, price: 1.5, qty: 2}]}         # after this frame
  - value: {type: snapshot, bids: []}
    refused: bad_path               # the reason; without it, the frame must be read
  - value: {type: info}
    ignored: true
rows: {BTC: [{side: bid, price: 1.5}]}                     # after the last frame
```

- A frame has the fields of a Kafka message: `value`, and optionally `topic`, `key`, `headers`, `timestamp` and
  `partition`. A `value` that is a text is sent as it is, any other as its JSON, with all digits as written. `null` is
  a tombstone.
- `rows` lists all rows of a session's table. Sessions and columns that are left out are not compared.
- `feed: book` reads all frames by one feed, whatever their topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from sessionlake.errors import UsageError
from sessionlake.feeds.cases import FeedTestDifference, FeedTestMessage, run_feed_test
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.numbers import NumberText
from sessionlake.protocol.reasons import Reason
from sessionlake.settings.bounded_yaml import MAX_BYTES, LimitedYamlLoader, explain_yaml_error, find_yaml_error_position
from sessionlake.settings.model import load_settings

__all__ = ["FeedTest", "check_feeds", "read_feed_test_file", "run_feed_test_file"]

_OF_FILE = ("feed", "topic", "frames", "rows")
_OF_MESSAGE = ("value", "topic", "key", "headers", "timestamp", "partition")
_OF_FRAME = (*_OF_MESSAGE, "rows", "refused", "ignored")
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


_MOST_DIGITS = 1000


@dataclass(frozen=True)
class FeedTest:
    """A test of feeds: the content of one test file.

    Attributes:
        feed: Name of the feed that reads all messages. None if each message's topic decides which feed reads it.
        frames: The test messages in order, each with the result that is expected after it.
        rows: By session id, the rows that the session's table must have after the last message.
    """

    feed: str | None
    frames: tuple[FeedTestMessage, ...]
    rows: dict[str, list[dict[str, Any]]]


def check_feeds(file: str | Path, config: str | Path) -> None:
    """Runs the test in a file, and fails if a feed gives other rows than the file expects. For pytest.

    Args:
        file: The test file, in the format that this module describes.
        config: The configuration file that declares the feeds.

    Raises:
        AssertionError: A table or message is not as expected. The text shows each difference.
        UsageError: The file cannot be read.
        ConfigError: The configuration is invalid.
    """
    feeds = [feed.convert_to_feed() for feed in load_settings(Path(config)).capture.feeds]
    differences = run_feed_test_file(feeds, read_feed_test_file(Path(file)), str(file))
    if differences:
        lines = [line for one in differences for line in one.format_lines()]
        raise AssertionError("\n".join([f"{file}: not as expected", *lines]))


def run_feed_test_file(feeds: Sequence[Feed], test: FeedTest, file_name: str) -> list[FeedTestDifference]:
    """Runs a test of feeds, and returns each difference between the expected and the actual results.

    Args:
        feeds: The configured feeds.
        test: The test.
        file_name: Name of the test's file, for error texts.

    Raises:
        UsageError: The test names a feed that is not configured, or does not say which feed reads it.
    """
    names = [feed.name for feed in feeds]
    only = next((feed for feed in feeds if feed.name == test.feed), None)
    if test.feed is not None and only is None:
        raise UsageError(
            f"{file_name}: `feed` names {test.feed!r}, but the configured feeds are {', '.join(names) or 'none'}",
            fix=_suggest_known_name(test.feed, names) or "Correct `feed`, or leave it out to choose by topic",
        )
    without = next((number for number, frame in enumerate(test.frames, 1) if "topic" not in frame.fields), None)
    if only is None and without is not None and len(feeds) == 1:
        only = feeds[0]
    if only is None and without is not None:
        raise UsageError(
            f"{file_name}: the message in frame {without} has no topic, and {len(feeds)} feeds are configured",
            why="The topic decides which feed reads the message",
            fix="Add `topic: NAME` or `feed: NAME` at the top of the file",
        )
    coded = next((feed for feed in ([only] if only else feeds) if feed.reads_avro_or_protobuf), None)
    if coded is not None:
        raise UsageError(
            f"{file_name}: the feed {coded.name} reads {coded.format.value}, which is bytes, and a file "
            "of frames has only text",
            fix="Test the feed on messages of a topic: `sessionlake feed try --topic NAME`",
        )
    topic = only.name if only is not None else ""
    frames = [
        FeedTestMessage({"topic": topic, **one.fields}, one.rows, one.refused, one.ignored) for one in test.frames
    ]
    return list(run_feed_test(feeds, only, frames, test.rows))


def read_feed_test_file(file: Path) -> FeedTest:
    """Reads a test file of feeds.

    Raises:
        UsageError: The file cannot be read, or something in it is not as this module describes it.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise UsageError(
                f"{file} is larger than {MAX_BYTES // (1 << 20)} MiB, the most that `feed test` reads of one file",
                fix="Split its tests among several files, and name all of them",
            )
        found = yaml.load(content.decode(), _TestFileLoader)  # noqa: S506 - a safe loader with limits
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}", fix="Correct the path, or the file's permissions"
        ) from None
    except yaml.YAMLError as error:
        line, _ = find_yaml_error_position(error, content.decode())
        where = f"{file}, line {line}" if line else f"{file}"
        raise UsageError(
            f"{where} is not valid YAML: {explain_yaml_error(error)}", fix="Correct the file at this place"
        ) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file} is not valid YAML: {error}", fix="Correct the file") from None
    content_of = _require_mapping_with_known_keys(found, _OF_FILE, str(file))
    frames = content_of.get("frames")
    if not isinstance(frames, list) or not frames:
        raise UsageError(
            f"{file} has no list `frames`, so there is nothing to test",
            fix="Write a list `frames`, in which each message has a `value` (docs/how-to/bring-your-own-messages.md)",
        )
    topic = content_of.get("topic")
    return FeedTest(
        content_of.get("feed"),
        tuple(_parse_test_frame(one, topic, f"{file}: frame {number}") for number, one in enumerate(frames, 1)),
        _parse_expected_rows(content_of.get("rows"), str(file)),
    )


def _parse_test_frame(frame_content: Any, default_topic: Any, location: str) -> FeedTestMessage:
    content = _require_mapping_with_known_keys(frame_content, _OF_FRAME, location)
    if "value" not in content:
        raise UsageError(
            f"{location} has no `value`, which is the message",
            fix="Write the message as `value: TEXT`, or `value: null` for a tombstone",
        )
    refused = content.get("refused")
    if refused is not None and refused not in list(Reason):
        fix = _suggest_known_name(str(refused), [*Reason]) or f"Write one of {', '.join(Reason)}"
        raise UsageError(f"{location}: `refused` is {refused!r}, which is not a reason for quarantine", fix=fix)
    fields = {name: content[name] for name in _OF_MESSAGE if name in content}
    fields = fields if default_topic is None else {"topic": default_topic, **fields}
    for name, kind in (("topic", str), ("headers", dict), ("timestamp", int), ("partition", int)):
        if name in fields and not isinstance(fields[name], kind):
            raise UsageError(
                f"{location}: `{name}` is {fields[name]!r}, which has the wrong type",
                fix="`topic` is a text, `headers` an object, and `timestamp` and `partition` are integers",
            )
    return FeedTestMessage(
        fields, _parse_expected_rows(content.get("rows"), location), refused, content.get("ignored") is True
    )


def _require_mapping_with_known_keys(value: Any, known_keys: Sequence[str], location: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(
            f"{location} is not an object with keys",
            fix=f"Write it as `KEY: VALUE`. Its keys can be {', '.join(known_keys)}",
        )
    for name in value:
        if name not in known_keys:
            fix = _suggest_known_name(str(name), known_keys) or f"Write one of {', '.join(known_keys)}"
            raise UsageError(f"{location}: the key {name!r} is not known here", fix=fix)
    return value


def _parse_expected_rows(rows_by_session: Any, location: str) -> dict[str, list[dict[str, Any]]]:
    if rows_by_session is None:
        return {}
    is_table = isinstance(rows_by_session, dict) and all(
        isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in rows_by_session.values()
    )
    if not is_table:
        raise UsageError(
            f"{location}: `rows`, the expected rows, must be lists of rows by session",
            fix="Write them as in `rows: {BTC: [{side: bid, price: 1.5}]}`",
        )
    return {str(session): rows for session, rows in rows_by_session.items()}


def _suggest_known_name(name: str, known_names: Sequence[str]) -> str:
    near = get_close_matches(name, known_names, 1)
    return f"Did you mean {near[0]}?" if near else ""


class _TestFileLoader(LimitedYamlLoader):
    """Loads YAML with the types of JSON: numbers keep all digits. Times, dates and words such as `on` become texts."""


def _construct_yaml_number_with_all_digits(loader: Any, node: Any) -> Any:
    text = loader.construct_scalar(node)
    return NumberText(text) if _JSON_NUMBER.fullmatch(text) else text


def _construct_yaml_integer(loader: Any, node: Any) -> Any:
    text = loader.construct_scalar(node)
    return int(text) if _JSON_NUMBER.fullmatch(text) and len(text) <= _MOST_DIGITS else text


def _construct_yaml_boolean(loader: Any, node: Any) -> Any:
    text = loader.construct_scalar(node)
    return {"true": True, "false": False}.get(text, text)


def _construct_yaml_time_as_text(loader: Any, node: Any) -> Any:
    return loader.construct_scalar(node)


for _tag, _construct in (
    ("float", _construct_yaml_number_with_all_digits),
    ("int", _construct_yaml_integer),
    ("bool", _construct_yaml_boolean),
    ("timestamp", _construct_yaml_time_as_text),
):
    _TestFileLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _construct)
