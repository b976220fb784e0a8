"""The messages that a session holds back, and when a session waits for a snapshot.

There are two reasons to hold messages back. Class `window` orders messages by event time. A feed with `hold` keeps the
messages that its session cannot apply without a snapshot, in their order of arrival.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from sessionlake.integrity.cursor import SessionCursor, SessionStatus
from sessionlake.integrity.outcome import MessageHeader
from sessionlake.integrity.rules import JudgingRules
from sessionlake.protocol.message import NO_SEQ, MessageType
from sessionlake.settings.section import Integrity


class HeldMessages:
    """The messages that a session holds back, in the order in which they will be judged.

    Args:
        messages: The messages that earlier batches held back, in any order.
        rules: The rules of the session's topic, which have the limits.
    """

    def __init__(self, messages: Iterable[MessageHeader], rules: JudgingRules) -> None:
        self._rules = rules
        self._find_place = _get_event_time_sort_key if rules.integrity is Integrity.WINDOW else _get_arrival_sort_key
        self._messages = sorted(messages, key=self._find_place)
        self._bytes = sum(message.size for message in self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def first_message(self) -> MessageHeader:
        """The message that will be judged first. There must be one."""
        return self._messages[0]

    @property
    def exceed_holding_limits(self) -> bool:
        """True if there are more messages or bytes than the session may hold back."""
        most = self._rules.hold or self._rules.max_held_messages
        return len(self._messages) > most or self._bytes > self._rules.max_held_bytes

    def add_message(self, message: MessageHeader) -> None:
        """Adds a message at its place in the order."""
        insort(self._messages, message, key=self._find_place)
        self._bytes += message.size

    def remove_message(self, message: MessageHeader) -> None:
        """Removes a message, which must be held."""
        del self._messages[bisect_left(self._messages, self._find_place(message), key=self._find_place)]
        self._bytes -= message.size

    def pop_first_message(self) -> MessageHeader:
        """Removes the message that is to be judged first, and returns it."""
        message = self._messages.pop(0)
        self._bytes -= message.size
        return message

    def pop_all_messages(self) -> list[MessageHeader]:
        """Removes all messages, and returns them in order."""
        messages, self._messages, self._bytes = self._messages, [], 0
        return messages


def is_session_waiting_for_snapshot(cursor: SessionCursor, rules: JudgingRules) -> bool:
    """Returns True if the session must hold its messages back until a snapshot arrives.

    With a feed's `hold`, that is so before its first snapshot, and while it is broken.
    """
    lacks_snapshot = cursor.last_seq == NO_SEQ and cursor.status == SessionStatus.OPEN
    return rules.hold > 0 and (lacks_snapshot or cursor.status == SessionStatus.BROKEN)


def must_message_wait_for_snapshot(message: MessageHeader, cursor: SessionCursor, rules: JudgingRules) -> bool:
    """Returns True if a message must be held back until a snapshot arrives. A snapshot or an `end` never waits."""
    return is_session_waiting_for_snapshot(cursor, rules) and message.type not in {
        MessageType.SNAPSHOT,
        MessageType.END,
    }


def _get_event_time_sort_key(message: MessageHeader) -> tuple[int, int]:
    return message.ts, message.seq


def _get_arrival_sort_key(message: MessageHeader) -> tuple[int, int]:
    return message.offset, 0
