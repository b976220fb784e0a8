r"""Pairs logins with logouts: who was logged in from when to when, and which of the two is missing.

A sensor sends one row per event. Its id is the user, and the declared column `event` is `login` or `logout`. A snapshot
lists who is logged in. In the configuration:

    capture: {columns: {event: string}} processors:
      - {name: logins, class: logins, topics: 'capture\.auth.*', options: {longest_hours: 12}}
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from sessionlake.processors import NEVER, Emitted, Message, Processor, Timer

LOGOUT_WITHOUT_LOGIN = "logout without a login"
NEVER_CLOSED = "login never closed"
_HOUR_MS = 3_600_000


@dataclass
class OpenLogins:
    """State of a session: the users who are logged in.

    Attributes:
        since: Event time in ms of each open login, by user.
    """

    since: dict[str, int] = field(default_factory=dict)


class Logins(Processor[OpenLogins]):
    """Emits a row for each pair of a login and its logout, for each login without a logout, and the reverse.

    Args:
        longest_hours: A login that stays open for longer than this, in stream time, is reported as never closed.
    """

    state = OpenLogins
    output: ClassVar = {"user": "string", "login_at": "timestamp", "logout_at": "timestamp", "fault": "string"}

    def __init__(self, longest_hours: float = 12) -> None:
        self._longest_ms = int(longest_hours * _HOUR_MS)

    def on_message(self, state: OpenLogins, message: Message) -> Iterable[Emitted]:
        """Records the logins and logouts in a message. Yields the rows of finished logins, and sets or stops timers."""
        events = {row.id: row.values.get("event") for row in message.rows}
        if message.type == "snapshot":
            missing = [user for user in state.since if events.get(user) != "login"]
            yield from self._close_logins_as_faulty(state, missing)
        for user, event in events.items():
            if event == "logout" and message.type == "update":
                yield self._close_login(state, user, message.ts)
                yield Timer(NEVER, user)
            elif event == "login" and not (message.type == "snapshot" and user in state.since):
                yield from self._close_logins_as_faulty(state, [user] if user in state.since else [])
                state.since[user] = message.ts
                yield Timer(message.stream_time + self._longest_ms, user)
        if message.type == "end":
            yield from self._close_logins_as_faulty(state, list(state.since))

    def on_timeout(self, state: OpenLogins, timer: Timer) -> Iterable[Emitted]:
        """Reports a login as never closed: one user's, or all of them if the session has expired."""
        yield from self._close_logins_as_faulty(state, list(state.since) if timer.expired else [timer.name])

    def _close_login(self, state: OpenLogins, user: str, closed_at: int) -> Emitted:
        since = state.since.pop(user, None)
        fault = LOGOUT_WITHOUT_LOGIN if since is None else None
        return {"user": user, "login_at": since, "logout_at": closed_at, "fault": fault}

    def _close_logins_as_faulty(self, state: OpenLogins, users: list[str]) -> Iterable[Emitted]:
        for user in users:
            yield {"user": user, "login_at": state.since.pop(user), "fault": NEVER_CLOSED}
