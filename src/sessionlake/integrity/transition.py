"""How applied messages change a cursor: one rule per column, used for many runs, one run and one message.

A *run* is a series of messages of one session that are applied one after the other. Each column of the cursor that
depends only on the applied messages is updated here and nowhere else. To add such a column, add a line to `STEPS`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

from sessionlake.integrity.cursor import SessionCursor, SessionCursors, SessionStatus
from sessionlake.protocol.message import INT64_MAX, INT64_MIN, MessageType
from sessionlake.protocol.types import Int8s, Int64s
from sessionlake.protocol.years import FIRST_MS, LAST_MS


class CursorUpdateRule(Enum):
    """How a value of the cursor is updated from the values of applied messages, such as to the greatest of them."""

    LEAST = 0
    GREATEST = 1
    LAST = 2
    AT_END = 3  # the value of the last message, if that is an end
    COUNT = 4


class CursorFieldUpdate(NamedTuple):
    """The rule by which one field of the cursor is updated from the applied messages.

    Attributes:
        column: The field of the cursor.
        how: How the field is updated.
        value: The field of `AppliedMessageRuns` from which it is computed.
        least: Lower values count as this one.
        greatest: Higher values count as this one.
    """

    column: str
    how: CursorUpdateRule
    value: str
    least: int = INT64_MIN
    greatest: int = INT64_MAX


STEPS = (
    CursorFieldUpdate("first_ts", CursorUpdateRule.LEAST, "ts"),
    CursorFieldUpdate("last_ts", CursorUpdateRule.GREATEST, "ts"),
    CursorFieldUpdate("last_seq", CursorUpdateRule.GREATEST, "seq"),
    CursorFieldUpdate("position", CursorUpdateRule.LAST, "position"),
    CursorFieldUpdate("ended_at", CursorUpdateRule.AT_END, "ts", FIRST_MS, LAST_MS),
    CursorFieldUpdate("end_seq", CursorUpdateRule.AT_END, "seq"),
    CursorFieldUpdate(
        "messages", CursorUpdateRule.COUNT, "seq"
    ),  # must be last: other steps need the count from before these messages
)


class AppliedMessageRuns(NamedTuple):
    """Applied messages of one or more sessions as arrays.

    A session's messages are a run; only its last one can be an `end`.

    Attributes:
        starts: Index of the first message of each run.
        type: Type of each message, a `MessageType`.
        seq: Seq of each message.
        ts: Event time of each message, ms.
        position: Place of each message in its session's order of application.
    """

    starts: Int64s
    type: Int8s
    seq: Int64s
    ts: Int64s
    position: Int64s


def apply_messages_to_cursors(cursors: SessionCursors, run: AppliedMessageRuns) -> None:
    """Updates the cursors of open sessions in place. The cursor at index n gets the messages of run n."""
    last = np.append(run.starts[1:], len(run.seq)) - 1
    ended, fresh = run.type[last] == MessageType.END, cursors["messages"] == 0
    for column, how, name, least, greatest in STEPS:
        before, values = cursors[column], getattr(run, name)
        match how:
            case CursorUpdateRule.LEAST:
                low = np.minimum.reduceat(values, run.starts)
                found = np.where(fresh, low, np.minimum(before, low))
            case CursorUpdateRule.GREATEST:
                high = np.maximum.reduceat(values, run.starts)
                found = np.where(fresh, high, np.maximum(before, high))
            case CursorUpdateRule.LAST:
                found = values[last]
            case CursorUpdateRule.AT_END:
                found = np.where(ended, np.clip(values[last], least, greatest), before)
            case CursorUpdateRule.COUNT:
                found = before + (last - run.starts + 1)
        cursors[column] = found
    cursors["status"][ended] = SessionStatus.ENDED


def apply_messages_to_cursor(cursor: SessionCursor, run: AppliedMessageRuns) -> None:
    """Updates the cursor of one open session in place with applied messages.

    All messages in `run` are of this session.
    """
    ended = int(run.type[-1]) == MessageType.END
    for step in STEPS:
        values, how = getattr(run, step.value), step.how
        match how:
            case CursorUpdateRule.LEAST:
                value = int(values.min())
            case CursorUpdateRule.GREATEST:
                value = int(values.max())
            case CursorUpdateRule.COUNT:
                value = len(values)
            case _:
                value = int(values[-1])
        _update_cursor_field(cursor, step, value, is_end=ended)
    if ended:
        cursor.status = SessionStatus.ENDED


def apply_message_to_cursor(cursor: SessionCursor, seq: int, ts: int, position: int, *, is_end: bool) -> None:
    """Updates the cursor of one session in place with one applied message.

    `is_end` is True if the message is an `end`.
    """
    values = {"seq": seq, "ts": ts, "position": position}
    for step in STEPS:
        _update_cursor_field(
            cursor, step, 1 if step.how is CursorUpdateRule.COUNT else values[step.value], is_end=is_end
        )
    if is_end:
        cursor.status = SessionStatus.ENDED


def _update_cursor_field(cursor: SessionCursor, step: CursorFieldUpdate, value: int, *, is_end: bool) -> None:
    """Updates one field of a cursor by its rule.

    `value` is the applied message's value; `is_end` says if it is an `end`.
    """
    before, how = getattr(cursor, step.column), step.how
    if how is CursorUpdateRule.COUNT:
        value += before
    elif how is CursorUpdateRule.AT_END:
        if not is_end:
            return
        value = min(max(value, step.least), step.greatest)
    elif cursor.messages and how is CursorUpdateRule.LEAST:
        value = min(before, value)
    elif cursor.messages and how is CursorUpdateRule.GREATEST:
        value = max(before, value)
    setattr(cursor, step.column, value)
