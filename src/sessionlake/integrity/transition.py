"""How applied messages change a cursor: one rule per column, used for many runs, one run and one message.

A *run* is a series of messages of one session that are applied one after the other. Each column of the cursor that
depends only on the applied messages is updated here and nowhere else. To add such a column, add a line to `STEPS`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

from sessionlake.integrity.cursor import Cursor, Cursors, Status
from sessionlake.protocol.message import INT64_MAX, INT64_MIN, MessageType
from sessionlake.protocol.types import Int8s, Int64s
from sessionlake.protocol.years import FIRST_MS, LAST_MS


class UpdateRule(Enum):
    """How a value of the cursor is updated from the values of applied messages, such as to the greatest of them."""

    LEAST = 0
    GREATEST = 1
    LAST = 2
    AT_END = 3  # the value of the last message, if that is an end
    COUNT = 4


class CursorStep(NamedTuple):
    """The rule by which one field of the cursor is updated from the applied messages.

    Attributes:
        column: The field of the cursor.
        how: How the field is updated.
        value: The field of `AppliedRun` from which it is computed.
        least: Lower values count as this one.
        greatest: Higher values count as this one.
    """

    column: str
    how: UpdateRule
    value: str
    least: int = INT64_MIN
    greatest: int = INT64_MAX


STEPS = (
    CursorStep("first_ts", UpdateRule.LEAST, "ts"),
    CursorStep("last_ts", UpdateRule.GREATEST, "ts"),
    CursorStep("last_seq", UpdateRule.GREATEST, "seq"),
    CursorStep("position", UpdateRule.LAST, "position"),
    CursorStep("ended_at", UpdateRule.AT_END, "ts", FIRST_MS, LAST_MS),
    CursorStep("end_seq", UpdateRule.AT_END, "seq"),
    CursorStep(
        "messages", UpdateRule.COUNT, "seq"
    ),  # must be last: other steps need the count from before these messages
)


class AppliedRun(NamedTuple):
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


def apply_runs(cursors: Cursors, run: AppliedRun) -> None:
    """Updates the cursors of open sessions in place. The cursor at index n gets the messages of run n."""
    last = np.append(run.starts[1:], len(run.seq)) - 1
    ended, fresh = run.type[last] == MessageType.END, cursors["messages"] == 0
    for column, how, name, least, greatest in STEPS:
        before, values = cursors[column], getattr(run, name)
        match how:
            case UpdateRule.LEAST:
                low = np.minimum.reduceat(values, run.starts)
                found = np.where(fresh, low, np.minimum(before, low))
            case UpdateRule.GREATEST:
                high = np.maximum.reduceat(values, run.starts)
                found = np.where(fresh, high, np.maximum(before, high))
            case UpdateRule.LAST:
                found = values[last]
            case UpdateRule.AT_END:
                found = np.where(ended, np.clip(values[last], least, greatest), before)
            case UpdateRule.COUNT:
                found = before + (last - run.starts + 1)
        cursors[column] = found
    cursors["status"][ended] = Status.ENDED


def apply_run(cursor: Cursor, run: AppliedRun) -> None:
    """Updates the cursor of one open session in place with applied messages.

    All messages in `run` are of this session.
    """
    ended = int(run.type[-1]) == MessageType.END
    for step in STEPS:
        values, how = getattr(run, step.value), step.how
        match how:
            case UpdateRule.LEAST:
                value = int(values.min())
            case UpdateRule.GREATEST:
                value = int(values.max())
            case UpdateRule.COUNT:
                value = len(values)
            case _:
                value = int(values[-1])
        _update_column(cursor, step, value, is_end=ended)
    if ended:
        cursor.status = Status.ENDED


def apply_message(cursor: Cursor, seq: int, ts: int, position: int, *, is_end: bool) -> None:
    """Updates the cursor of one session in place with one applied message.

    `is_end` is True if the message is an `end`.
    """
    values = {"seq": seq, "ts": ts, "position": position}
    for step in STEPS:
        _update_column(cursor, step, 1 if step.how is UpdateRule.COUNT else values[step.value], is_end=is_end)
    if is_end:
        cursor.status = Status.ENDED


def _update_column(cursor: Cursor, step: CursorStep, value: int, *, is_end: bool) -> None:
    """Updates one field of a cursor by its rule.

    `value` is the applied message's value; `is_end` says if it is an `end`.
    """
    before, how = getattr(cursor, step.column), step.how
    if how is UpdateRule.COUNT:
        value += before
    elif how is UpdateRule.AT_END:
        if not is_end:
            return
        value = min(max(value, step.least), step.greatest)
    elif cursor.messages and how is UpdateRule.LEAST:
        value = min(before, value)
    elif cursor.messages and how is UpdateRule.GREATEST:
        value = max(before, value)
    setattr(cursor, step.column, value)
