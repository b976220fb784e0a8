"""Lookups over HTTP, against a real server: what comes back, and what is given up, in bounded time."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydantic import SecretStr

from sessionlake.gold.references.lookup import HttpLookup, LookupFailedError
from sessionlake.settings.references import LookupSettings
from support.answers import QueryResult, Rows, answering, rows

KEYS = [{"device": "a"}, {"device": "b"}]


def lookup(url: str, **further: Any) -> HttpLookup:
    settings = {"timeout": "300 ms", "attempts": 2, **further}
    return HttpLookup(LookupSettings.model_validate({"url": url, **settings}))


def test_keys_are_posted_with_the_token_and_rows_come_back():
    with answering(lambda keys: rows([key | {"owner": "x"} for key in keys])) as asked:
        found = lookup(asked.url, token=SecretStr("secret")).fetch(KEYS)
        assert found == [{"device": "a", "owner": "x"}, {"device": "b", "owner": "x"}]
        assert asked.headers[0]["Authorization"] == "Bearer secret"


def test_a_server_that_is_busy_for_a_moment_is_asked_again():
    answers = iter([(503, b""), rows([])])
    with answering(lambda _: next(answers)) as asked:
        assert lookup(asked.url).fetch(KEYS) == []
        assert asked.requests == [KEYS, KEYS]


@pytest.mark.parametrize(
    ("answer", "kind", "requests"),
    [
        ((500, b"oops"), "http_500", 2),
        ((404, b"[]"), "http_404", 1),
        ((302, b""), "http_302", 1),
        ((200, b"<html>"), "answer", 1),
        ((200, b'{"device": "a"}'), "answer", 1),
    ],
)
def test_what_is_no_answer_is_reported_by_its_kind(answer: QueryResult, kind: str, requests: int):
    with answering(lambda _: answer) as asked:
        with pytest.raises(LookupFailedError) as error:
            lookup(asked.url).fetch(KEYS)
        assert (error.value.kind, len(asked.requests)) == (kind, requests)


def silent(_: Rows) -> QueryResult:
    time.sleep(1)
    return rows([])


def test_a_server_that_says_nothing_is_given_up_in_time():
    begun = time.monotonic()
    with answering(silent) as asked, pytest.raises(LookupFailedError) as error:
        lookup(asked.url).fetch(KEYS)
    assert error.value.kind == "timeout"
    assert time.monotonic() - begun < 5


def test_a_server_that_says_a_byte_at_a_time_is_given_up_in_time():
    begun = time.monotonic()
    with answering(lambda _: (200, b" " * 1_000)) as asked:
        asked.drip = 0.05
        with pytest.raises(LookupFailedError) as error:
            lookup(asked.url).fetch(KEYS)
    assert error.value.kind == "timeout"
    assert time.monotonic() - begun < 10


def test_a_server_that_is_not_there_is_no_answer():
    with answering(silent) as asked:
        url = asked.url
    with pytest.raises(LookupFailedError) as error:
        lookup(url).fetch(KEYS)
    assert error.value.kind == "connection"
