"""A running bronze whose topics change, or whose query fails, while Kafka answers late, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sessionlake.bronze import query
from sessionlake.bronze.query import BronzeQuery
from sessionlake.errors import BrokerError, KafkaAccessError, OffsetHoleError, SessionlakeError, TopicChangedError
from sessionlake.streaming.generations import CheckpointGeneration, CheckpointGenerations
from sessionlake.streaming.query import LayerQuery

FOREVER = 10**6


class Book:
    """Topics of which one leaves while the query runs; Kafka leaves questions without an answer."""

    def __init__(self) -> None:
        self.unanswered = 0
        self.excluded_topics: frozenset[str] = frozenset()
        self.asked = self.looked = 0
        self.open = True
        self.is_kafka_unreachable = False

    def needs_new_subscription(self) -> bool:
        return bool(self.excluded_topics)

    def raise_if_kafka_unreachable(self) -> None:
        self.asked += 1
        if self.unanswered:
            self.unanswered -= 1
            raise BrokerError("Kafka does not answer")

    def update_topics_from_kafka(self) -> None:
        self.looked += 1

    def list_topics_to_exclude(self) -> frozenset[str]:
        return self.excluded_topics

    def list_next_offsets(self) -> dict[tuple[str, int], int]:
        return {("a", 0): 0}

    def read_kafka_ends(self) -> dict[tuple[str, int], int]:
        return {("a", 0): 0}

    def close(self) -> None:
        self.open = False


class BatchCommitter:
    def __call__(self, *_: Any) -> None: ...

    def reject_later_batches(self) -> None: ...


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How the query was started, of which Spark has no part."""
    made: list[Any] = []
    monkeypatch.setattr(query, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(LayerQuery, "start", lambda *_, **how: made.append(how))
    monkeypatch.setattr(LayerQuery, "stop", lambda _: None)
    monkeypatch.setattr(LayerQuery, "is_active", True)
    return made


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def running(book: Book, starts: list[Any], told: list[str], tmp_path: Path) -> BronzeQuery:
    generations = CheckpointGenerations(str(tmp_path / "bronze"), "bronze")
    assert starts == []
    made = BronzeQuery(
        "bronze",
        generations,
        book,
        source=lambda _: (None, BatchCommitter()),
        record_planned=lambda _: False,
        reject_planned=lambda _: None,
        trigger=timedelta(seconds=1),
        once=False,
        on_wait=told.append,
    ).start_query()
    book.excluded_topics, book.asked = frozenset({"gone"}), 0
    return made


def test_a_topic_that_leaves_while_kafka_is_away_starts_the_query_again_when_it_is_back(running, book, starts, told):
    book.unanswered = 100
    for _ in range(100):
        running.check_query_health()
    assert (len(starts), told) == (1, ["bronze waits for Kafka: Kafka does not answer"])
    running.check_query_health()
    assert (len(starts), book.open, told[1:]) == (2, True, ["Kafka answers; bronze resumes"])


def test_a_batch_that_another_generation_plans_again_is_given_up_first_and_counts_if_it_came_before_that(
    book, starts, tmp_path, monkeypatch
):
    class Elsewhere:
        """A query that is to go on elsewhere, unless its generation has not begun."""

        def __init__(self, folder: Path) -> None:
            self.has_started = folder.name == "bronze"
            self.pending_batch = 0

        def would_resume_at(self, *_: Any, **__: Any) -> bool:
            return False

    monkeypatch.setattr(query, "CheckpointOffsets", Elsewhere)
    (tmp_path / "bronze").mkdir()
    (tmp_path / "bronze" / "metadata").write_text('{"id": "q"}')
    came, seen = False, []

    def record_planned(generation: CheckpointGeneration) -> bool:
        seen.append(("settle", generation.number))
        return came and generation.number == 0

    def reject_planned(generation: CheckpointGeneration) -> None:
        nonlocal came
        seen.append(("give up", generation.number))
        came = True  # behind the first look, and before it was given up

    generations = CheckpointGenerations(str(tmp_path / "bronze"), "bronze")
    BronzeQuery(
        "bronze", generations, book, source=lambda _: (None, BatchCommitter()),
        record_planned=record_planned, reject_planned=reject_planned,
        trigger=timedelta(seconds=1), once=False, on_wait=print,
    ).start_query()  # fmt: skip
    assert seen == [("settle", 0), ("give up", 0), ("settle", 0), ("settle", 1), ("give up", 1)]
    assert (generations.current_generation.number, book.looked, len(starts)) == (1, 2, 1)


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[SessionlakeError], None]:
    def with_error(error: SessionlakeError) -> None:
        def wait(*_: Any) -> bool:
            raise error

        monkeypatch.setattr(LayerQuery, "wait", wait)

    return with_error


@pytest.mark.parametrize("error", [BrokerError("timed out"), TopicChangedError("deleted"), OffsetHoleError("unknown")])
def test_a_query_that_failed_of_kafka_or_its_topics_is_started_again_when_kafka_answers(
    running, book, starts, fails, told, error
):
    fails(error)
    book.unanswered = 100
    assert [running.wait(0) for _ in range(100)] == [False] * 100
    assert (len(starts), len(told), book.open) == (1, 1, True)
    assert running.wait(0) is False
    assert (len(starts), len(told), book.open) == (2, 2, True)


@pytest.mark.parametrize("error", [BrokerError("timed out"), OffsetHoleError("unknown")])
def test_what_fails_while_kafka_answers_and_topics_are_as_they_were_is_tried_five_times_and_reported(
    running, book, starts, fails, error
):
    book.excluded_topics = frozenset()
    fails(error)
    for _ in range(5):
        assert running.wait(0) is False
    with pytest.raises(type(error), match=str(error)):
        running.wait(0)
    assert (len(starts), book.open) == (6, False)


def test_under_once_it_is_reported_after_a_while_that_kafka_does_not_answer(running, book, starts, fails, monkeypatch):
    monkeypatch.setattr(query, "_ONCE_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(running, "_once", True)
    fails(TopicChangedError("a topic was deleted"))
    book.unanswered = FOREVER
    with pytest.raises(BrokerError, match="does not answer"):
        running.wait()
    assert (len(starts), book.open) == (1, False)


@pytest.mark.parametrize("error", [BrokerError("timed out"), None])
def test_a_kafka_that_refuses_this_client_is_not_waited_for(running, book, starts, fails, monkeypatch, error):
    def refuses() -> None:
        raise KafkaAccessError("wrong password")

    if error is not None:
        fails(error)
        monkeypatch.setattr(LayerQuery, "is_active", False)
    monkeypatch.setattr(book, "raise_if_kafka_unreachable", refuses)
    with pytest.raises(KafkaAccessError, match="wrong password"):
        running.check_query_health()
    assert (len(starts), book.open) == (1, False)


def test_of_a_query_that_failed_of_something_else_kafka_is_asked_once_and_the_failure_reported(
    running, book, starts, fails, told
):
    fails(SessionlakeError("the disk is full"))
    book.unanswered = FOREVER
    with pytest.raises(SessionlakeError, match="disk is full"):
        running.wait(0)
    assert (len(starts), book.asked, book.open, told) == (1, 1, False, [])
