"""Answers four questions about a lake: is it complete, right, fresh and queryable? Each answer comes with a number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sessionlake.delta.schemas.names import BRONZE, GOLD, SILVER, SILVER_TABLES
from sessionlake.history.report.contents import Contents
from sessionlake.history.report.words import amount, data_size, duration, layer_name, number, share
from sessionlake.history.status import LayerStatus


class Verdict(StrEnum):
    """The short answer to one of the four questions."""

    YES = "yes"
    PARTLY = "partly"
    """Nothing is wrong with the tables, but there is something that the reader should know."""
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """One of the four questions with its answer.

    Attributes:
        figure: The number from the tables on which the answer is based, as text.
        detail: What the number means.
    """

    question: str
    verdict: Verdict
    figure: str
    detail: str


def answers(contents: Contents) -> list[Answer]:
    """Returns the answers to the four questions: is the lake complete, right, fresh and queryable?"""
    return [_complete(contents), _right(contents), _fresh(contents), _queryable(contents)]


def _complete(contents: Contents) -> Answer:
    question, bronze = "Is it complete?", _status(contents, BRONZE)
    if not bronze.messages:
        return Answer(question, Verdict.UNKNOWN, "no messages", "bronze has read nothing yet")
    lost = contents.missing + sum(status.unaccounted for status in contents.statuses)
    places = amount(contents.partitions, "topic-partition")
    if lost:
        detail = f"offsets without a message, or messages that the ledger does not account for, in {places}"
        return Answer(question, Verdict.NO, f"{number(lost)} missing", f"{detail}: see sessionlake doctor")
    completeness = "no message occurs twice" if contents.allows_gaps else "no offset is missing"
    detail = f"{completeness} in {places}, and the ledger accounts for every message"
    if bronze.behind:
        return Answer(question, Verdict.PARTLY, f"{number(bronze.behind)} to come", f"Kafka has more; so far {detail}")
    unasked = "" if bronze.behind is not None else "; Kafka could not be asked for more"
    return Answer(question, Verdict.YES, amount(bronze.messages, "message"), detail + unasked)


def _right(contents: Contents) -> Answer:
    question, silver, sessions = "Is it right?", _status(contents, SILVER), contents.sessions
    if not silver.messages:
        return Answer(question, Verdict.UNKNOWN, "not judged", "silver has read nothing yet")
    broken = dict(zip(sessions.kinds, sessions.sums, strict=True)).get("broken", 0)
    detail = (
        f"{share(silver.quarantined, silver.messages)} of {amount(silver.messages, 'message')} in quarantine, "
        f"{amount(silver.duplicates, 'duplicate')} dropped, {number(silver.held)} held back"
    )
    if broken:
        figure = f"{number(broken)} of {amount(sessions.total, 'session')} broken"
        return Answer(question, Verdict.PARTLY, figure, f"kept apart until their next snapshots; {detail}")
    verdict = Verdict.PARTLY if silver.quarantined else Verdict.YES
    return Answer(question, verdict, f"{amount(sessions.total, 'session')}, none broken", detail)


def _fresh(contents: Contents) -> Answer:
    question = "Is it fresh?"
    if not contents.lags:
        return Answer(question, Verdict.UNKNOWN, "no batches", "no layer behind bronze has committed yet")
    last = max(contents.lags, key=lambda lag: lag.now)
    typical = "median lag: " + ", ".join(f"{layer_name(lag.layer)} {duration(lag.median)}" for lag in contents.lags)
    waiting = [name for name in (SILVER, SILVER_TABLES, GOLD) if _status(contents, name).behind]
    if not waiting:
        return Answer(question, Verdict.YES, "nothing waits", f"every layer has all that bronze has; {typical}")
    behind = ", ".join(map(layer_name, waiting))
    return Answer(question, Verdict.PARTLY, f"{duration(last.now)} behind", f"{behind}; {typical}")


def _queryable(contents: Contents) -> Answer:
    question, sizes = "Can I query it?", [size for _, size in contents.tables]
    if not sizes:
        return Answer(question, Verdict.UNKNOWN, "no tables", "they come with the first batch")
    rows, size = sum(size.rows for size in sizes), data_size(sum(size.bytes for size in sizes))
    files = amount(sum(size.files for size in sizes), "file")
    detail = f"{amount(rows, 'row')}, {size} in {files} of plain Delta tables"
    return Answer(question, Verdict.YES, amount(len(sizes), "table"), detail)


def _status(contents: Contents, layer: str) -> LayerStatus:
    return next(status for status in contents.statuses if status.layer == layer)
