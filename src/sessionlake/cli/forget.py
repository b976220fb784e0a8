"""`sessionlake forget`: one session leaves every layer, on the running system, and a receipt says so."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sessionlake.cli.context import Config, say, settings_of, with_spark
from sessionlake.cli.options import OfTopic, ShortenGold
from sessionlake.cli.show import write_line
from sessionlake.errors import UsageError
from sessionlake.visible import json_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.ledger.erasures import Erasure
    from sessionlake.settings.model import Settings


def forget(
    session: Annotated[str | None, typer.Option("--session", help="The session's id.")] = None,
    topic: OfTopic = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish one that was interrupted.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Give up one that was interrupted before anything was erased.")
    ] = False,
    wait: Annotated[
        int, typer.Option("--wait", min=0, metavar="SECONDS", help="For layers to stand aside, and publications.")
    ] = 600,
    shorten_gold: ShortenGold = False,
    config: Config = None,
) -> None:
    """Remove one session from every table, state, checkpoint and history; the receipt goes to standard output."""
    settings = settings_of(config)
    from sessionlake.delta.lake import storage_of

    if (session is not None) + resume + cancel != 1:
        raise UsageError("forget: give one of --session ID, --resume and --cancel")
    storage_of(settings).require_writable()
    if cancel:
        receipt_name = with_spark(settings, lambda spark: cancelled(spark, settings, wait))
        say(f"receipt {receipt_name} is withdrawn: nothing was erased, and all layers can start")
        return
    found = with_spark(settings, lambda spark: forgotten(spark, settings, session, topic, wait, shorten=shorten_gold))
    write_line(json_line(receipt(found), indent=2))
    still, unread = found.report["search"]["found"], found.report["search"]["unread"]
    for place in still:
        say(f"the id still stands in {place}")
    for place in unread:
        say(f"the id may still stand in {place}, which cannot be read: remove it if nobody needs it")
    if still or unread:
        raise typer.Exit(1)


def forgotten(
    spark: SparkSession,
    settings: Settings,
    session: str | None,
    topic: str | None,
    wait: float,
    *,
    shorten: bool = False,
) -> Erasure:
    """Forgets the session while all layers stand aside; without one, finishes the forgetting that was interrupted."""
    from sessionlake.operations.forgetting.forget import Forgetting
    from sessionlake.streaming.pause_requests import request_pause

    with request_pause(settings, "a session is being forgotten"), _claimed(spark, settings, wait):
        work = Forgetting(spark, settings, patience=wait, shorten=shorten, say=say)
        return work.resume() if session is None else work.run(session, topic)


def cancelled(spark: SparkSession, settings: Settings, wait: float) -> str:
    """Gives up an interrupted forgetting while all layers stand aside; returns the receipt's name."""
    from sessionlake.operations.forgetting.forget import Forgetting

    with _claimed(spark, settings, wait):
        return Forgetting(spark, settings).cancel()


def receipt(found: Erasure) -> dict[str, Any]:
    """What the officer is given: the row of `bronze.erasures`, its report spread out."""
    whole = asdict(found)
    moments = {name: whole[name].isoformat() for name in ("begun_at", "done_at")}
    report = whole.pop("report")
    return whole | moments | report


def _claimed(spark: SparkSession, settings: Settings, seconds: float) -> AbstractContextManager[None]:
    from sessionlake.cli.aside import all_claimed
    from sessionlake.ledger.erasures import CLAIM

    return all_claimed(spark, settings, seconds, "forgets a session", CLAIM)
