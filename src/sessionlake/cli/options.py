"""Options that several commands take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sessionlake.errors import UsageError

_COMMENT = re.compile(r"--(?!$|[a-z][\w-]*(=.*)?$)", re.DOTALL)
"""Two hyphens that begin neither an option, as in `--format=json`, nor the words that are none."""

Say = Callable[[str], None]
"""What is told to whoever runs a command, one message at a time."""

Session = Annotated[str, typer.Argument(help="The session's id.")]
OfTopic = Annotated[str | None, typer.Option("--topic", help="Its topic, where the id alone is ambiguous.")]
OfPartition = Annotated[
    int | None, typer.Option("--partition", min=0, help="Its partition, where the topic has the id in several.")
]

BySession = Annotated[str, typer.Option("--session", help="The session's id.")]
ShortenGold = Annotated[
    bool, typer.Option("--shorten-gold", help="Gold begins later, where changes of its beginning are gone.")
]

# A rebuild that was interrupted while it replaced tables.
Cancel = Annotated[
    bool, typer.Option("--cancel", help="Give up an interrupted rebuild that has not replaced a table yet.")
]
StartOver = Annotated[
    bool, typer.Option("--start-over", help="Build everything again, instead of finishing an interrupted rebuild.")
]


@dataclass(frozen=True)
class DecisionOptions:
    """What an operator decides about the place at which a session broke its class."""

    session: BySession
    accept_gap: Annotated[bool, typer.Option("--accept-gap", help="Apply the message all the same.")] = False
    isolate: Annotated[bool, typer.Option("--isolate", help="Break the session until its next snapshot.")] = False
    skip_message: Annotated[
        int | None, typer.Option("--skip-message", metavar="OFFSET", min=0, help="As if it had not arrived.")
    ] = None
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take a decision back that none has followed.")] = False
    topic: OfTopic = None
    partition: OfPartition = None
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="The place [where silver stopped].")] = None
    why: Annotated[str | None, typer.Option("--why", help="Kept with the decision.")] = None


def takes_decision(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of a decision in the place of its first parameter, a `DecisionOptions`."""
    options = [*inspect.signature(DecisionOptions, eval_str=True).parameters.values()]
    own = [*inspect.signature(command, eval_str=True).parameters.values()][1:]

    @wraps(command)
    def run(**given: Any) -> None:
        asked = DecisionOptions(**{field.name: given.pop(field.name) for field in fields(DecisionOptions)})
        command(asked, **given)

    del run.__wrapped__
    run.__signature__ = inspect.Signature([*options, *own])  # type: ignore[attr-defined]  # Typer reads it
    run.__annotations__ = {one.name: one.annotation for one in (*options, *own)}
    return run


def moment(option: str, text: str) -> datetime:
    """The time that an option gives in ISO 8601, in UTC unless it says otherwise.

    Raises:
        UsageError: the text is none.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text!r}: expected ISO 8601, as in 2026-11-21T18:18:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def refuse_together(*, cancel: bool, start_over: bool, others: bool) -> None:
    """Refuses options that exclude each other.

    Args:
        others: whether options were given that say what to rebuild.

    Raises:
        UsageError: more than one is given.
    """
    if cancel + start_over + others > 1:
        raise UsageError("rebuild: --cancel and --start-over each stand alone, without other options: use one of them")


class Lost(StrEnum):
    """What `recover` recovers."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    LEDGER = "ledger"


class TakesSql(TyperCommand):
    """A command whose argument is SQL, which may begin with a comment: `-- why`, a line break, and the statement.

    That looks like an option to the parser of the command line. A line break before it changes nothing in SQL.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """The words that are left, as click's own."""
        return super().parse_args(ctx, [f"\n{word}" if _COMMENT.match(word) else word for word in args])
