"""Options that several commands share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sessionlake.cli.context import INT64_MAX
from sessionlake.errors import UsageError

_COMMENT = re.compile(r"--(?!$|[a-z][\w-]*(=.*)?$)", re.DOTALL)
"""Matches a SQL comment: two hyphens that begin neither an option, such as `--format=json`, nor stand alone."""

Say = Callable[[str], None]
"""Writes one message for the user."""

Session = Annotated[str, typer.Argument(help="The session's id.")]
OfTopic = Annotated[
    str | None, typer.Option("--topic", help="The session's topic, if several topics have this session id.")
]
OfPartition = Annotated[
    int | None,
    typer.Option("--partition", min=0, help="The session's partition, if several partitions have this session id."),
]

BySession = Annotated[str, typer.Option("--session", help="The session's id.")]
ShortenGold = Annotated[
    bool,
    typer.Option(
        "--shorten-gold",
        help="Accept that gold covers less time, because retention has removed the oldest changes it was made of.",
    ),
]

Cancel = Annotated[
    bool, typer.Option("--cancel", help="Cancel an interrupted rebuild. Only possible before it has replaced a table.")
]
StartOver = Annotated[
    bool, typer.Option("--start-over", help="Build everything again instead of finishing an interrupted rebuild.")
]

ReportFile = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="The file to write [default: report.html in the home]."),
]
ExplainedRows = Annotated[
    str,
    typer.Option("--where", help="SQL condition that selects rows of the table; the first three are explained."),
]
ExplainedPartition = Annotated[int, typer.Option("--partition", help="With --offset: the message's partition.", min=0)]
ExplainedOffset = Annotated[
    int | None,
    typer.Option("--offset", help="Say whether the message at this Kafka offset is part of the figures.", min=0),
]
PublishedTopic = Annotated[
    str, typer.Option("--topic", help="The topic to send to; if it does not exist, it is created as compacted.")
]
PurgeVectors = Annotated[
    str | None,
    typer.Option(
        "--purge-vectors",
        metavar="TABLE",
        help="Only rewrite this table without deletion vectors, for readers that do not support them.",
    ),
]
ProcessorName = Annotated[
    str | None, typer.Argument(help="With `processor`: the name of one of them [default: all processors].")
]
AtTime = Annotated[
    str | None,
    typer.Option("--ts", help="At this stream time (Kafka's): ISO 8601, or milliseconds since 1970."),
]
AfterSeq = Annotated[
    int | None, typer.Option("--seq", help="Just after the message with this seq.", min=0, max=INT64_MAX)
]
AfterOffset = Annotated[
    int | None, typer.Option("--offset", help="Just after the message at this Kafka offset.", min=0, max=INT64_MAX)
]
FromBronzeVersion = Annotated[
    int | None,
    typer.Option(
        "--from-bronze-version", min=0, help="The version of bronze.messages to build from [default: the latest]."
    ),
]


@dataclass(frozen=True)
class DecisionOptions:
    """The options of `sessionlake resolve`: an operator's decision about a message that violates its class."""

    session: BySession
    accept_gap: Annotated[bool, typer.Option("--accept-gap", help="Apply the message in spite of the violation.")] = (
        False
    )
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Stop only this session, until its next snapshot; others continue.")
    ] = False
    skip_message: Annotated[
        int | None,
        typer.Option(
            "--skip-message", metavar="OFFSET", min=0, help="Put the message at this offset into quarantine unapplied."
        ),
    ] = None
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Withdraw an earlier decision that silver has not used yet.")
    ] = False
    topic: OfTopic = None
    partition: OfPartition = None
    offset: Annotated[
        int | None,
        typer.Option("--offset", min=0, help="The message's Kafka offset [default: where silver stopped]."),
    ] = None
    why: Annotated[
        str | None, typer.Option("--why", help="The reason, which is stored with the decision in ops.decisions.")
    ] = None


def add_decision_options(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that has an option for each field of `DecisionOptions` instead of its first parameter.

    The given command's first parameter must be the `DecisionOptions`.
    """
    options = [*inspect.signature(DecisionOptions, eval_str=True).parameters.values()]
    others = [*inspect.signature(command, eval_str=True).parameters.values()][1:]

    @wraps(command)
    def run_with_options(**given: Any) -> None:
        decision = DecisionOptions(**{field.name: given.pop(field.name) for field in fields(DecisionOptions)})
        command(decision, **given)

    del run_with_options.__wrapped__
    run_with_options.__signature__ = inspect.Signature([*options, *others])  # type: ignore[attr-defined]  # Typer reads it
    run_with_options.__annotations__ = {one.name: one.annotation for one in (*options, *others)}
    return run_with_options


def parse_time(option: str, text: str) -> datetime:
    """Returns the time that a text in ISO 8601 means. Without a time zone it is UTC.

    Args:
        option: Name of the option that has the text, for the error.
        text: The text.

    Raises:
        UsageError: The text is not a time.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is not a time", fix="Write it in ISO 8601 with a time zone, as in 2026-11-21T18:18:00Z"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def refuse_combined_options(*, cancel: bool, start_over: bool, others: bool) -> None:
    """Checks that `--cancel` and `--start-over` are given alone.

    Args:
        cancel: True if `--cancel` is given.
        start_over: True if `--start-over` is given.
        others: True if an option is given that says what to rebuild.

    Raises:
        UsageError: More than one of the three arguments is True.
    """
    if cancel + start_over + others > 1:
        raise UsageError(
            "rebuild: --cancel and --start-over each stand alone: they cannot be combined with each "
            "other or with other options",
            fix="Give only one of them",
        )


class RunnableLayer(StrEnum):
    """The values that `sessionlake run` accepts. They repeat `pipeline.Layer`, whose import would be slow."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    PROCESSOR = "processor"
    ALL = "all"


class RecoverableLayer(StrEnum):
    """What `sessionlake recover` can repair."""

    BRONZE = "bronze"
    SILVER = "silver"
    GOLD = "gold"
    LEDGER = "ledger"


class FeedFormat(StrEnum):
    """The output formats of the commands `sessionlake feed`."""

    TEXT = "text"
    JSON = "json"


class ShownMessages(StrEnum):
    """The messages that `feed try` shows."""

    ALL = "all"
    REFUSED = "refused"
    NONE = "none"


class SqlCommand(TyperCommand):
    """A command whose argument is SQL that may begin with a comment: `-- why`, a line break, and the statement.

    Click takes such a comment for an option. A line break before it avoids that, and changes nothing in SQL.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parses the words of the command line. A word that begins with a SQL comment gets a line break before it."""
        return super().parse_args(ctx, [f"\n{word}" if _COMMENT.match(word) else word for word in args])


RecoveredLayer = Annotated[
    RecoverableLayer, typer.Argument(metavar="LAYER", help="The layer to repair; `ledger` means the table ops.ledger.")
]
