"""Runs the frames of a feed's test, and compares the tables with the expected rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from sessionlake.feeds.events import DecodedMessage, MessageRefusal
from sessionlake.feeds.feed import EventKind, Feed
from sessionlake.feeds.lines import build_kafka_record
from sessionlake.feeds.numbers import NumberText
from sessionlake.feeds.table import SessionTable
from sessionlake.feeds.trial import FeedTrial, TrialOutcome
from sessionlake.feeds.values import format_json

Tables = Mapping[str, Sequence[Mapping[str, Any]]]
"""Expected rows by session."""


@dataclass(frozen=True)
class FeedTestMessage:
    """A message of a test, and what is expected after it.

    Attributes:
        fields: The message's fields, as a line of a file has them: `topic`, `value`, `key`, `headers`, `timestamp`.
        rows: Rows that tables must have after the message.
        refused: Reason for which the message must be refused; None if it must be read.
        ignored: True if a rule must ignore the message.
    """

    fields: Mapping[str, Any]
    rows: Tables
    refused: str | None = None
    ignored: bool = False


@dataclass(frozen=True)
class FeedTestDifference:
    """Something that is not as a test expects it.

    Attributes:
        where: The frame, and the session and row if there are such.
        what: What is different, in a few words.
        expected: The expected row; None if no row is expected, or if it is about a message.
        actual: The row of the table; None if it has none.
    """

    where: str
    what: str
    expected: Mapping[str, Any] | None = None
    actual: Mapping[str, Any] | None = None

    def format_lines(self) -> Iterator[str]:
        """Yields lines of text: what is different, then the expected and the actual row if there are such."""
        yield f"{self.where}: {self.what}"
        for name, row in (("expected", self.expected), ("actual  ", self.actual)):
            if row is not None:
                values = (f"{column} {_format_value_of_row(value)}" for column, value in row.items())
                yield f"  {name}  {', '.join(values)}"


def run_feed_test(
    feeds: Sequence[Feed], only_feed: Feed | None, messages: Sequence[FeedTestMessage], expected_rows: Tables
) -> Iterator[FeedTestDifference]:
    """Reads the frames one by one, and yields what is not as expected.

    Args:
        feeds: The configured feeds.
        only_feed: The feed that reads all frames; None to choose by topic.
        messages: The frames.
        expected_rows: Rows that tables must have after the last frame.
    """
    trial = FeedTrial(feeds, only_feed=only_feed)
    for number, frame in enumerate(messages, 1):
        failed = trial.totals.checks_failed + trial.totals.presence_failed
        outcome = trial.read_message(build_kafka_record(_convert_key_and_value_to_text(frame.fields), number - 1))
        where = f"frame {number}"
        yield from _find_outcome_differences(where, frame, outcome)
        if trial.totals.checks_failed + trial.totals.presence_failed > failed:
            yield FeedTestDifference(where, "; ".join(outcome.findings))
        yield from _find_table_differences(where, frame.rows, trial)
    yield from _find_table_differences("after the last frame", expected_rows, trial)


def _convert_key_and_value_to_text(message_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields with value and key as text. A text is sent as it is; any other value as its JSON."""
    texts = {name: message_fields[name] for name in ("value", "key") if message_fields.get(name) is not None}
    return {
        **message_fields,
        **{name: text if type(text) is str else format_json(text) for name, text in texts.items()},
    }


def _find_outcome_differences(
    where: str, message: FeedTestMessage, outcome: TrialOutcome
) -> Iterator[FeedTestDifference]:
    """Yields how the reading of a message differs from what its frame expects."""
    found = outcome.found
    if found is None:
        yield FeedTestDifference(where, f"no feed matches topic {outcome.record.topic}")
    elif isinstance(found, MessageRefusal) and message.refused is None:
        at = f" at {found.path}" if found.path else ""
        yield FeedTestDifference(where, f"it was refused as {found.reason}{at}: {found.why}")
    elif isinstance(found, MessageRefusal) and message.refused != found.reason.value:
        yield FeedTestDifference(where, f"it was refused as {found.reason}, expected {message.refused}: {found.why}")
    elif isinstance(found, DecodedMessage) and message.refused is not None:
        yield FeedTestDifference(
            where, f"it was read by {_describe_what_read_message(found)}, expected to be refused as {message.refused}"
        )
    elif (
        isinstance(found, DecodedMessage)
        and message.ignored
        and any(one.kind is not EventKind.IGNORE for one in found.events)
    ):
        yield FeedTestDifference(where, f"it was read by {_describe_what_read_message(found)}, expected to be ignored")


def _describe_what_read_message(found: DecodedMessage) -> str:
    return " and ".join(f"rule {number}" for number in found.rules) or "the decoder"


def _find_table_differences(where: str, expected: Tables, trial: FeedTrial) -> Iterator[FeedTestDifference]:
    """Yields how the tables of sessions differ from the expected rows."""
    for session, rows in expected.items():
        tables = [table for (_, _, name), table in trial.tables.items() if name == str(session)]
        if not tables:
            known = ", ".join(sorted({name for _, _, name in trial.tables})) or "none"
            yield FeedTestDifference(f"{where}, session {session}", f"there is no such session; there are: {known}")
            continue
        yield from _find_row_differences(f"{where}, session {session}", rows, tables[0])


def _find_row_differences(
    where: str, expected: Sequence[Mapping[str, Any]], table: SessionTable
) -> Iterator[FeedTestDifference]:
    """Yields how the table of a session differs from the expected rows."""
    left = dict(table.rows)
    keys = [column.name for column in table.feed.key]
    for row in expected:
        unknown = [name for name in row if name not in table.feed.columns]
        lacking = [name for name in keys if name not in row]
        if unknown or lacking:
            what = f"names {', '.join(unknown)}" if unknown else f"lacks the key's column {', '.join(lacking)}"
            yield FeedTestDifference(
                where, f"the expected row {what}; columns are {', '.join(table.feed.columns)}", row
            )
            continue
        row_id = next(
            (one for one, found in left.items() if all(equals_expected_value(found[name], row[name]) for name in keys)),
            None,
        )
        if row_id is None:
            yield FeedTestDifference(where, "a row is missing", row)
            continue
        found = left.pop(row_id)
        wrong = [name for name in row if not equals_expected_value(found[name], row[name])]
        if wrong:
            what = f"{', '.join(wrong)} {'differs' if len(wrong) == 1 else 'differ'}"
            yield FeedTestDifference(f"{where}, row {row_id}", what, row, {name: found[name] for name in row})
    for row_id, found in left.items():
        yield FeedTestDifference(f"{where}, row {row_id}", "this row is not expected", None, found)


def equals_expected_value(actual: Any, expected: Any) -> bool:
    """Returns True if a value of a table is the expected one.

    Args:
        actual: The value, as the type of its column has it.
        expected: The value as a test writes it: times and dates in ISO 8601, bytes in base64, JSON for a variant.
    """
    if actual is None or expected is None or isinstance(actual, bool) or isinstance(expected, bool):
        return actual is expected
    try:
        return _equals_expected_non_null_value(actual, expected)
    except (ValueError, TypeError, InvalidOperation):
        return False


def _equals_expected_non_null_value(actual: Any, expected: Any) -> bool:  # noqa: PLR0911 - one return for each type
    if isinstance(actual, Decimal | int):
        return bool(Decimal(str(expected)) == actual)
    if isinstance(actual, float):
        return float(expected) == actual
    if isinstance(actual, date):
        return _equals_expected_time(actual, expected)
    if isinstance(actual, list):
        return len(actual) == len(expected) and all(map(equals_expected_value, actual, expected))
    if isinstance(actual, bytes):
        return base64.b64decode(expected, validate=True) == actual
    if isinstance(expected, dict | list):
        return bool(json.loads(actual) == json.loads(format_json(expected)))
    return bool(actual == str(expected))


def _equals_expected_time(actual: date, expected: str) -> bool:
    if not isinstance(actual, datetime):
        return date.fromisoformat(expected) == actual
    time = datetime.fromisoformat(expected)
    return time.replace(tzinfo=time.tzinfo or actual.tzinfo) == actual


def _format_value_of_row(value: Any) -> str:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, str | Decimal | NumberText) else format_json(value)
