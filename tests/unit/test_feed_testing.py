"""`feed test` and `check_feeds` compare tables with a file of frames, and show each difference row by row."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from sessionlake.cli import app as cli
from sessionlake.errors import UsageError
from sessionlake.feed_testing import check_feeds, read_feed_test_file
from sessionlake.feeds.cases import equals_expected_value
from sessionlake.feeds.numbers import NumberText
from support.feed_cases import BOOK, KRAKEN

GOOD = """
topic: feed.book.a
frames:
  - value: {type: snapshot, s: A, t: 1, u: 1, pu: -1, bids: [["1.50", "2"]], asks: [["1.7", "4"]]}
    rows:
      A: [{side: ask, price: 1.7, qty: 4}, {side: bid, price: 1.5}]
  - value: '{"type": "delta", "s": "A", "t": 2, "u": 2, "pu": 1, "bids": [["1.5", "0"]], "asks": []}'
  - value: {type: snapshot}
    refused: bad_path
  - value: {type: info}
    ignored: true
rows: {A: [{side: ask, price: 1.70, qty: 4.0}]}
"""
LAST = "after the last frame, session A"
Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    configure(BOOK)

    def run(text: str, *words: str) -> Result:
        Path("book.test.yml").write_text(text)
        command = ["feed", "test", "book.test.yml", *words]
        return CliRunner().invoke(cli.app, command, env={"SESSIONLAKE_HOME": str(tmp_path / "home")})

    return run


def configure(*feeds: str) -> None:
    content = {"capture": {"feeds": [yaml.safe_load(text) for text in feeds]}}
    Path("sessionlake.yml").write_text(yaml.safe_dump(content, sort_keys=False))


def test_a_file_whose_tables_are_as_expected_passes(call):
    result = call(GOOD)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "book.test.yml: frames 4, as expected\n", "")
    check_feeds("book.test.yml", config="sessionlake.yml")


@pytest.mark.parametrize(
    ("written", "instead", "shown"),
    [
        (
            "qty: 4.0}", "qty: 5}",
            ['after the last frame, session A, row ["ask",1.7]: qty differs',
             "  expected  side ask, price 1.70, qty 5",
             "  actual    side ask, price 1.7000000000, qty 4.0000000000"],
        ),
        (
            ", {side: bid, price: 1.5}]", "]",
            ['frame 1, session A, row ["bid",1.5]: this row is not expected',
             "  actual    side bid, price 1.5000000000, qty 2.0000000000"],
        ),
        (
            "rows: {A: [{", "rows: {A: [{side: bid, price: 9}, {",
            ["after the last frame, session A: a row is missing", "  expected  side bid, price 9"],
        ),
        ("rows: {A: [", "rows: {B: [", ["after the last frame, session B: there is no such session; there are: A"]),
        ("refused: bad_path", "refused: no_rule",
         ["frame 3: it was refused as bad_path, expected no_rule: the order's number is missing or null"]),
        ("    refused: bad_path\n", "",
         ["frame 3: it was refused as bad_path at u: the order's number is missing or null"]),
        ("    ignored: true\n", "    refused: no_rule\n",
         ["frame 4: it was read by rule 5, expected to be refused as no_rule"]),
        ('pu: -1, bids: [["1.50", "2"]], asks: [["1.7", "4"]]}\n',
         'pu: -1, bids: [["1.50", "2"]], asks: [["1.7", "4"]]}\n    ignored: true\n',
         ["frame 1: it was read by rule 1, expected to be ignored"]),
        ("topic: feed.book.a", "topic: other", [
            "frame 1: no feed matches topic other",
            "frame 1, session A: there is no such session; there are: none",
            "frame 2: no feed matches topic other",
            "frame 3: no feed matches topic other",
            "frame 4: no feed matches topic other",
            "after the last frame, session A: there is no such session; there are: none",
        ]),
        ("price: 1.70, ", "", [
            f"{LAST}: the expected row lacks the key's column price; columns are side, price, qty",
            "  expected  side ask, qty 4.0",
            'after the last frame, session A, row ["ask",1.7]: this row is not expected',
            "  actual    side ask, price 1.7000000000, qty 4.0000000000",
        ]),
    ],
)  # fmt: skip
def test_a_difference_is_shown_with_both_rows_and_exits_with_1(call, written, instead, shown):
    assert written in GOOD
    result = call(GOOD.replace(written, instead))
    *lines, last = result.stdout.splitlines()
    assert (result.exit_code, lines) == (1, shown)
    assert last.startswith("book.test.yml: frames 4, differences ")
    with pytest.raises(AssertionError, match=r"book.test.yml: not as expected") as failed:
        check_feeds("book.test.yml", config="sessionlake.yml")
    assert str(failed.value).splitlines()[1:] == shown


def test_json_has_one_object_a_file(call):
    result = call(GOOD.replace("qty: 4.0}", "qty: 5}"), "--format", "json")
    found = json.loads(result.stdout)
    assert (found["file"], found["frames"], found["differences"][0]["what"]) == ("book.test.yml", 4, "qty differs")
    assert found["differences"][0]["actual"]["qty"] == "4.0000000000"


def test_digits_are_sent_as_they_are_written_and_a_wrong_checksum_fails(call):
    configure(KRAKEN.replace("kafka.headers.connection, ", ""))
    frame = '[0, {"a": [["1.10", "2.0"]]}, {"b": [["0.90", "3.5"]], "c": "%s"}, "book-10", "X/Y"]'
    snapshot = '[0, {"as": [], "bs": []}, "book-10", "X/Y"]'
    good = f"frames:\n  - value: '{snapshot}'\n  - value: '{frame % 3712277254}'\n"
    good += '    rows: {X/Y: [{side: ask, price: 1.1, price_text: "1.10"}, {side: bid, price: .9, qty_text: 3.5}]}\n'
    assert call(good).stdout == "book.test.yml: frames 2, as expected\n"
    bad = call(good.replace("3712277254", "1"))
    assert "frame 2: checksum: the table does not have the checksum in the message" in bad.stdout
    assert bad.exit_code == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frames: [", "book.test.yml, line 1 is not valid YAML: a value or a closing bracket is"),
        ("- 1", "book.test.yml is not an object with keys"),
        ("frames: []", "book.test.yml has no list `frames`"),
        ("frame: [{value: 1}]", "the key 'frame' is not known here. Did you mean frames?"),
        ("frames: [{valu: 1}]", "frame 1: the key 'valu' is not known here. Did you mean value?"),
        ("frames: [{topic: a}]", "frame 1 has no `value`"),
        (
            "frames: [{value: 1, refused: bad_pat}]",
            "`refused` is 'bad_pat', which is not a reason for quarantine. Did you mean bad_path?",
        ),
        ("frames: [{value: 1, rows: [1]}]", "frame 1: `rows`, the expected rows, must be lists of rows by session"),
        ("frames: [{value: 1, headers: x}]", "frame 1: `headers` is 'x'"),
        (
            "feed: bok\nframes: [{value: 1}]",
            "`feed` names 'bok', but the configured feeds are book. Did you mean book?",
        ),
        ("frames: " + "[" * 200, "book.test.yml, line 1 is not valid YAML: nested deeper than 64"),
        ("x: " + "y" * 2_000_000, "book.test.yml is larger than 1 MiB"),
        ("a: &a [1]\nframes: &b [*b]", "book.test.yml, line 2 is not valid YAML: the alias *b"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_usage_error(call, text, said):
    result = call(text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_a_file_that_is_not_there_or_not_text_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_feed_test_file(tmp_path / "none.yml")
    (tmp_path / "bytes.yml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not valid YAML"):
        read_feed_test_file(tmp_path / "bytes.yml")


def test_several_feeds_need_a_topic_or_a_name(call):
    configure(BOOK, KRAKEN)
    without = GOOD.replace("topic: feed.book.a\n", "")
    assert "the message in frame 1 has no topic, and 2 feeds are configured" in call(without).stderr
    assert call(f"feed: book\n{without}").exit_code == 0
    assert call(GOOD).exit_code == 0


@pytest.mark.parametrize(
    ("actual", "expected", "is_equal"),
    [
        (Decimal("1.50"), NumberText("1.5"), True),
        (Decimal("1.50"), "x", False),
        (7, 7, True),
        (7, NumberText("7.0"), True),
        (1, True, False),
        (True, True, True),
        (0.1, NumberText("0.1"), True),
        (None, None, True),
        (None, 0, False),
        ("1.10", NumberText("1.10"), True),
        ("1.10", NumberText("1.1"), False),
        (date(2026, 1, 31), "2026-01-31", True),
        (datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T00:00:00Z", True),
        (datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T01:00:00+01:00", True),
        (datetime(2026, 1, 31, tzinfo=UTC).replace(tzinfo=None), "2026-01-31", True),
        (b"\0\1", "AAE=", True),
        ([1, None], [1, None], True),
        ([1], [1, 2], False),
        ('{"a":[1,1.10]}', {"a": [1, NumberText("1.1")]}, True),
        ("{}", {"a": 1}, False),
    ],
)
def test_a_value_equals_what_a_file_writes_for_it(actual, expected, is_equal):
    assert equals_expected_value(actual, expected) is is_equal
