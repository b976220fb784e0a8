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
class WhoIsIn:
    """The event time in ms of each user's open login."""

    since: dict[str, int] = field(default_factory=dict)


class Logins(Processor[WhoIsIn]):
    """Emits a row for every login that is followed by a logout, and for every login or logout without the other.

    Args:
        longest_hours: a login that stays open for longer, in stream time, is reported as never closed.
    """

    state = WhoIsIn
    output: ClassVar = {"user": "string", "login_at": "timestamp", "logout_at": "timestamp", "fault": "string"}

    def __init__(self, longest_hours: float = 12) -> None:
        self._longest_ms = int(longest_hours * _HOUR_MS)

    def on_message(self, state: WhoIsIn, message: Message) -> Iterable[Emitted]:
        """Opens and closes logins."""
        events = {row.id: row.values.get("event") for row in message.rows}
        if message.type == "snapshot":
            missing = [user for user in state.since if events.get(user) != "login"]
            yield from self._make_rows_of_open_logins(state, missing)
        for user, event in events.items():
            if event == "logout" and message.type == "update":
                yield self._make_login_row(state, user, message.ts)
                yield Timer(NEVER, user)
            elif event == "login" and not (message.type == "snapshot" and user in state.since):
                yield from self._make_rows_of_open_logins(state, [user] if user in state.since else [])
                state.since[user] = message.ts
                yield Timer(message.stream_time + self._longest_ms, user)
        if message.type == "end":
            yield from self._make_rows_of_open_logins(state, list(state.since))

    def on_timeout(self, state: WhoIsIn, timer: Timer) -> Iterable[Emitted]:
        """Reports a login as never closed: one user's, or all of them if the session has expired."""
        yield from self._make_rows_of_open_logins(state, list(state.since) if timer.expired else [timer.name])

    def _make_login_row(self, state: WhoIsIn, user: str, at: int) -> Emitted:
        since = state.since.pop(user, None)
        fault = LOGOUT_WITHOUT_LOGIN if since is None else None
        return {"user": user, "login_at": since, "logout_at": at, "fault": fault}

    def _make_rows_of_open_logins(self, state: WhoIsIn, users: list[str]) -> Iterable[Emitted]:
        for user in users:
            yield {"user": user, "login_at": state.since.pop(user), "fault": NEVER_CLOSED}
