"""Options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from sessionlake.errors import UsageError

OfTopic = Annotated[str | None, typer.Option("--topic", help="Its topic, where the id alone is ambiguous.")]

# A decision about the place at which a session broke its class.
Broken = Annotated[str, typer.Option("--session", help="The session's id.")]
AcceptGap = Annotated[bool, typer.Option("--accept-gap", help="Apply the message all the same.")]
Isolate = Annotated[bool, typer.Option("--isolate", help="Break the session until its next snapshot.")]
SkipMessage = Annotated[
    int | None, typer.Option("--skip-message", metavar="OFFSET", min=0, help="As if it had not arrived.")
]
Withdraw = Annotated[bool, typer.Option("--withdraw", help="Take a decision back that none has followed.")]
Place = Annotated[int | None, typer.Option("--offset", min=0, help="The place [where silver stopped].")]
Why = Annotated[str | None, typer.Option("--why", help="Kept with the decision.")]
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
