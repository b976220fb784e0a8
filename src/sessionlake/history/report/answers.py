"""Answers four questions about a lake: is it complete, right, fresh and queryable? Each answer comes with a number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sessionlake.delta.schemas.names import BRONZE, GOLD, SILVER, SILVER_TABLES
from sessionlake.history.report.contents import ReportContents
from sessionlake.history.report.words import (
    format_count_with_noun,
    format_data_size,
    format_duration,
    format_layer_name,
    format_number,
    format_percentage,
)
from sessionlake.history.status import LayerStatus


class AnswerVerdict(StrEnum):
    """The short answer to one of the four questions."""

    YES = "yes"
    PARTLY = "partly"
    """Nothing is wrong with the tables, but there is something that the reader should know."""
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class AnsweredQuestion:
    """One of the four questions about a lake, with its answer.

    Attributes:
        question: The question.
        verdict: The short answer.
        figure: The number from the tables on which the answer is based, as text.
        detail: What the number means.
    """

    question: str
    verdict: AnswerVerdict
    figure: str
    detail: str


def answer_report_questions(contents: ReportContents) -> list[AnsweredQuestion]:
    """Returns the answers to the four questions about a lake: is it complete, right, fresh and queryable?"""
    return [
        _answer_whether_complete(contents),
        _answer_whether_right(contents),
        _answer_whether_fresh(contents),
        _answer_whether_queryable(contents),
    ]


def _answer_whether_complete(contents: ReportContents) -> AnsweredQuestion:
    question, bronze = "Is it complete?", _find_status_of_layer(contents, BRONZE)
    if not bronze.messages:
        return AnsweredQuestion(question, AnswerVerdict.UNKNOWN, "no messages", "bronze has read nothing yet")
    lost = contents.missing + sum(status.unaccounted for status in contents.statuses)
    places = format_count_with_noun(contents.partitions, "topic-partition")
    if lost:
        detail = f"offsets without a message, or messages that the ledger does not account for, in {places}"
        return AnsweredQuestion(
            question, AnswerVerdict.NO, f"{format_number(lost)} missing", f"{detail}: see sessionlake doctor"
        )
    completeness = "no message occurs twice" if contents.allows_gaps else "no offset is missing"
    detail = f"{completeness} in {places}, and the ledger accounts for every message"
    if bronze.behind:
        return AnsweredQuestion(
            question,
            AnswerVerdict.PARTLY,
            f"{format_number(bronze.behind)} to come",
            f"Kafka has more; so far {detail}",
        )
    unasked = "" if bronze.behind is not None else "; Kafka could not be asked for more"
    return AnsweredQuestion(
        question, AnswerVerdict.YES, format_count_with_noun(bronze.messages, "message"), detail + unasked
    )


def _answer_whether_right(contents: ReportContents) -> AnsweredQuestion:
    question, silver, sessions = "Is it right?", _find_status_of_layer(contents, SILVER), contents.sessions
    if not silver.messages:
        return AnsweredQuestion(question, AnswerVerdict.UNKNOWN, "not judged", "silver has read nothing yet")
    broken = dict(zip(sessions.categories, sessions.sums, strict=True)).get("broken", 0)
    detail = (
        f"{format_percentage(silver.quarantined, silver.messages)} of "
        f"{format_count_with_noun(silver.messages, 'message')} in quarantine, "
        f"{format_count_with_noun(silver.duplicates, 'duplicate')} dropped, {format_number(silver.held)} held back"
    )
    if broken:
        figure = f"{format_number(broken)} of {format_count_with_noun(sessions.total, 'session')} broken"
        return AnsweredQuestion(
            question, AnswerVerdict.PARTLY, figure, f"kept apart until their next snapshots; {detail}"
        )
    verdict = AnswerVerdict.PARTLY if silver.quarantined else AnswerVerdict.YES
    return AnsweredQuestion(
        question, verdict, f"{format_count_with_noun(sessions.total, 'session')}, none broken", detail
    )


def _answer_whether_fresh(contents: ReportContents) -> AnsweredQuestion:
    question = "Is it fresh?"
    if not contents.lags:
        return AnsweredQuestion(
            question, AnswerVerdict.UNKNOWN, "no batches", "no layer behind bronze has committed yet"
        )
    last = max(contents.lags, key=lambda lag: lag.now)
    typical = "median lag: " + ", ".join(
        f"{format_layer_name(lag.layer)} {format_duration(lag.median)}" for lag in contents.lags
    )
    waiting = [name for name in (SILVER, SILVER_TABLES, GOLD) if _find_status_of_layer(contents, name).behind]
    if not waiting:
        return AnsweredQuestion(
            question, AnswerVerdict.YES, "nothing waits", f"every layer has all that bronze has; {typical}"
        )
    behind = ", ".join(map(format_layer_name, waiting))
    return AnsweredQuestion(
        question, AnswerVerdict.PARTLY, f"{format_duration(last.now)} behind", f"{behind}; {typical}"
    )


def _answer_whether_queryable(contents: ReportContents) -> AnsweredQuestion:
    question, sizes = "Can I query it?", [size for _, size in contents.tables]
    if not sizes:
        return AnsweredQuestion(question, AnswerVerdict.UNKNOWN, "no tables", "they come with the first batch")
    rows, size = sum(size.rows for size in sizes), format_data_size(sum(size.bytes for size in sizes))
    files = format_count_with_noun(sum(size.files for size in sizes), "file")
    detail = f"{format_count_with_noun(rows, 'row')}, {size} in {files} of plain Delta tables"
    return AnsweredQuestion(question, AnswerVerdict.YES, format_count_with_noun(len(sizes), "table"), detail)


def _find_status_of_layer(contents: ReportContents, layer: str) -> LayerStatus:
    return next(status for status in contents.statuses if status.layer == layer)
