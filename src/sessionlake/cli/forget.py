"""`sessionlake forget`: removes one session from every layer of a running system, and prints a receipt."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sessionlake.cli.context import Config, call_with_spark, load_config, print_to_stderr
from sessionlake.cli.options import OfTopic, ShortenGold
from sessionlake.cli.show import write_line
from sessionlake.errors import UsageError
from sessionlake.visible import to_json_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.ledger.erasures import ErasureReceipt
    from sessionlake.settings.model import Settings


def forget(
    session: Annotated[str | None, typer.Option("--session", help="The id of the session to forget.")] = None,
    topic: OfTopic = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish a forgetting that was interrupted.")] = False,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel", help="Cancel a forgetting that was interrupted. Only possible before anything was erased."
        ),
    ] = False,
    wait: Annotated[
        int,
        typer.Option(
            "--wait",
            min=0,
            metavar="SECONDS",
            help="How long to wait for running layers to pause, and for publications to send the removals.",
        ),
    ] = 600,
    shorten_gold: ShortenGold = False,
    config: Config = None,
) -> None:
    """Erase one session from every table, state and history.

    Prints a receipt as JSON. Running layers pause meanwhile. Exits with 1 if the session's id is still found somewhere.
    """
    from sessionlake.delta.lake import create_storage

    settings = load_config(config)
    if (session is not None) + resume + cancel != 1:
        raise UsageError(
            "forget: the command needs exactly one of --session, --resume and --cancel",
            fix="Run `sessionlake forget --session ID`, or with --resume to finish an interrupted command",
        )
    create_storage(settings).require_writable_storage()
    if cancel:
        receipt_name = call_with_spark(settings, lambda spark: cancel_forgetting(spark, settings, wait))
        print_to_stderr(f"receipt {receipt_name} is withdrawn: nothing was erased, and all layers can start")
        return
    erasure = call_with_spark(
        settings, lambda spark: forget_session(spark, settings, session, topic, wait, shorten=shorten_gold)
    )
    write_line(to_json_line(create_erasure_receipt(erasure), indent=2))
    remaining, unread = erasure.report["search"]["found"], erasure.report["search"]["unread"]
    for place in remaining:
        print_to_stderr(f"the id is still in {place}")
    for place in unread:
        print_to_stderr(f"the id may still be in {place}, which cannot be read: remove it if nobody needs it")
    if remaining or unread:
        raise typer.Exit(1)


def forget_session(
    spark: SparkSession,
    settings: Settings,
    session: str | None,
    topic: str | None,
    wait: float,
    *,
    shorten: bool = False,
) -> ErasureReceipt:
    """Erases a session while all layers are paused, and returns a report of what was erased.

    Args:
        spark: The Spark session.
        settings: The configuration.
        session: The session's id. None finishes the forgetting that was interrupted.
        topic: The session's topic; None if the id is in one topic only.
        wait: How long to wait for layers and publications, in seconds.
        shorten: True if gold may cover less time, because retention has removed changes.
    """
    from sessionlake.operations.forgetting.forget import SessionForgetter
    from sessionlake.streaming.pause_requests import request_pause

    with request_pause(settings, "a session is being forgotten"), _lock_all_layers_to_forget(spark, settings, wait):
        work = SessionForgetter(spark, settings, patience=wait, shorten=shorten, say=print_to_stderr)
        return work.resume_forgetting() if session is None else work.forget_session(session, topic)


def cancel_forgetting(spark: SparkSession, settings: Settings, wait: float) -> str:
    """Cancels an interrupted forgetting while all layers are paused, and returns the name of its receipt.

    `wait` says how many seconds to wait until running layers have paused.
    """
    from sessionlake.operations.forgetting.forget import SessionForgetter

    with _lock_all_layers_to_forget(spark, settings, wait):
        return SessionForgetter(spark, settings).cancel_forgetting()


def create_erasure_receipt(erasure: ErasureReceipt) -> dict[str, Any]:
    """Returns the receipt of an erasure: the values of a row of `bronze.erasures`, and of its report, by name."""
    row = asdict(erasure)
    times = {name: row[name].isoformat() for name in ("begun_at", "done_at")}
    report = row.pop("report")
    return row | times | report


def _lock_all_layers_to_forget(spark: SparkSession, settings: Settings, seconds: float) -> AbstractContextManager[None]:
    from sessionlake.cli.claims import lock_all_layers_for_block
    from sessionlake.ledger.erasures import CLAIM

    return lock_all_layers_for_block(spark, settings, seconds, "forgets a session", CLAIM)
