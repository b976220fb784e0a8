"""The page over lakes of every kind: everything is in it, and nothing out of the data is more than text."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    AVERAGES,
    EVENTS,
    LEDGER,
    MESSAGES,
    METRICS_1M,
    PROGRESS,
    QUARANTINE,
    RULE_EVENTS,
)
from sessionlake.history.report import contents as contents_module
from sessionlake.history.report import words
from sessionlake.history.report.alerts import read_latest_alerts
from sessionlake.history.report.answers import AnswerVerdict, answer_report_questions
from sessionlake.history.report.contents import read_report_contents
from sessionlake.history.report.crosstab import arrange_counts_by_topic_and_category
from sessionlake.history.report.page import render_page, write_report
from sessionlake.settings.model import Settings
from support.lakes import find_table_folder
from support.ledgers import NOON, entries
from support.reports import END, Seen, fill, minute, point, write

SECTIONS = [
    "Is it complete?", "Is it right?", "Is it fresh?", "Can I query it?",
    "Freshness", "Throughput", "Judgements by topic", "Sessions by topic", "Quarantine by topic and reason",
    "Rolling averages and minutes", "Alerts of rules", "Tables", "Latest batches",
]  # fmt: skip
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' style='background:url(https://example.org)",
    "{{ 7 * 7 }}{% for a in b %}",
    "]]></style></svg><iframe src=//example.org>",
    "&lt;b&gt;&amp;",
    "$\\frac{1}{0}$ tip:x \u00a6 y",
    "\x00\x1b[31m\u202egnp.exe\u2028",
    "n" * 5000,
    "",
]


HARMLESS = {
    *("html", "head", "meta", "title", "link", "style", "body", "header", "main", "footer", "section", "article"),
    *("div", "h1", "h2", "h3", "p", "span", "bdi", "small", "code", "figure", "svg", "defs", "g", "path", "text"),
    *("use", "clippath", "rect", "table", "thead", "tbody", "tfoot", "tr", "th", "td"),
}


@pytest.fixture
def lake(settings: Settings) -> Lake:
    return Lake(settings)


def seen(lake: Lake) -> Seen:
    return Seen(render_page(read_report_contents(lake.reader(), lake.settings)))


def test_a_lake_without_tables_has_a_page_that_says_so(lake):
    found = seen(lake)
    assert found.all_text("h2") == SECTIONS
    assert found.charts == []
    assert {
        answer.verdict for answer in answer_report_questions(read_report_contents(lake.reader(), lake.settings))
    } == {AnswerVerdict.UNKNOWN}


def test_a_lake_with_nothing_but_bronze_has_a_page(lake):
    bronze = entries(0, 40).filter(pa.compute.field("layer") == "bronze")
    write_deltalake(find_table_folder(lake, LEDGER), bronze)
    write_deltalake(find_table_folder(lake, MESSAGES), pa.table({"topic": ["capture.a"] * 400}))
    found = seen(lake)
    assert found.all_text("h2") == SECTIONS
    assert found.charts == ["How much each layer read per second, over time"]
    verdicts = [
        answer.verdict for answer in answer_report_questions(read_report_contents(lake.reader(), lake.settings))
    ]
    assert verdicts == [AnswerVerdict.YES, AnswerVerdict.UNKNOWN, AnswerVerdict.UNKNOWN, AnswerVerdict.YES]


def test_every_chart_and_table_of_a_lake_is_on_its_page(lake):
    fill(lake, ["capture.a", "capture.b"])
    found = seen(lake)
    assert found.all_text("h2") == SECTIONS
    over_time = [
        "How many seconds each layer was behind bronze, over time",
        "How much each layer read per second, over time",
    ]
    of_series = ["Values and their moving average over event time"]
    of_series += ["Least, mean and greatest value of each minute of event time"]
    assert found.charts == [*over_time, *of_series, *of_series]
    assert {"1,600 messages", "9 tables"} <= set(found.all_text("p"))
    assert render_page(read_report_contents(lake.reader(), lake.settings)).count("published first: 99") == 2
    ids = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_names_out_of_the_data_are_text_whatever_they_hold(lake):
    fill(lake, HOSTILE)
    text = render_page(read_report_contents(lake.reader(), lake.settings))
    found = Seen(text)
    assert found.tags <= HARMLESS
    assert not [name for _, attrs in found.elements for name in attrs if name.startswith("on")]
    links = {attrs.get(name) for _, attrs in found.elements for name in ("href", "src", "xlink:href", "action")}
    assert {link for link in links if link and not link.startswith("#")} == {"data:,"}
    assert "url(http" not in "".join(attrs.get("style") or "" for _, attrs in found.elements)
    for hostile in HOSTILE:
        assert words.format_name(hostile).strip() in {*found.all_text("bdi"), ""}
    assert re.search(r"[\x00-\x08\x0b-\x1f\u2028\u2029\u202a-\u202e\u2066-\u2069]", text) is None


@pytest.mark.parametrize(
    "value", [float("inf"), None, *(pytest.param(one, marks=pytest.mark.soak) for one in (float("nan"), -1.7e308))]
)
def test_what_no_axis_has_room_for_is_left_out(lake, value):
    fill(lake, ["capture.a"])
    series = dict.fromkeys(("topic", "session_id", "row_id", "metric"), "capture.a")
    write(lake, AVERAGES, [series | point(END, 0) | {"value": value}])
    write(lake, METRICS_1M, [series | minute(NOON + timedelta(minutes=3), 0) | {"max": value}])
    (found,) = read_report_contents(lake.reader(), lake.settings).series
    assert (len(found.points), len(found.minutes)) == (200, 4)
    assert len(seen(lake).charts) == 4


@pytest.mark.parametrize("last", [-(2**63), -1, 2**63 - 1, None])
def test_a_session_beyond_the_calendar_has_no_series(lake, last):
    fill(lake, ["capture.a"])
    write(lake, PROGRESS, [{"topic": "b", "session_id": "b", "messages": 10**6, "last_ts": last, "_batch": 1}])
    assert [series.topic for series in read_report_contents(lake.reader(), lake.settings).series] == ["capture.a"]


def test_the_page_allows_itself_no_script_and_no_network(lake):
    found = seen(lake)
    (policy,) = [a["content"] for _, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.split("; ")[:3] == ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data:"]


def test_a_table_too_large_to_count_is_counted_from_a_batch_on_and_the_page_says_which(lake, monkeypatch):
    monkeypatch.setattr(contents_module, "_COUNTED", 15)
    ledger = entries(0, 40).to_pylist()
    for row in ledger:
        if row["layer"] == "silver":
            row |= {"quarantined": 10, "applied": 30}
            row["outputs"] = [*row["outputs"], {"table": QUARANTINE, "version": 0, "rows": 10}]
    write_deltalake(find_table_folder(lake, LEDGER), pa.Table.from_pylist(ledger, entries(0, 1).schema))
    write(lake, QUARANTINE, [{"topic": "a", "reason": "gap", "_batch": n // 10} for n in range(100)])
    write(lake, EVENTS, [{"topic": "a", "event": "gap", "_batch": 0}])
    found = read_report_contents(lake.reader(), lake.settings)
    assert (found.quarantined.since, found.quarantined.table.total) == (9, 10)
    assert (found.judgements.since, found.judgements.table.total) == (None, 1)
    assert "Of the latest batches, from silver's batch 9 on." in render_page(found)


@pytest.mark.parametrize("change", [{"messages": 41}, {"parts": 41}, {"offsets": []}])
def test_messages_that_became_nothing_and_offsets_that_are_missing_are_reported_first(lake, change):
    ledger = entries(0, 40).to_pylist()
    ledger[21] |= change  # silver's batch 5
    write_deltalake(find_table_folder(lake, LEDGER), pa.Table.from_pylist(ledger, entries(0, 1).schema))
    complete = answer_report_questions(read_report_contents(lake.reader(), lake.settings))[0]
    assert (complete.verdict, complete.figure.endswith(" missing")) == (AnswerVerdict.NO, True)


def test_a_hole_is_one_in_each_layer_counts_once_and_not_at_all_where_offsets_have_holes_by_right(lake):
    ledger = [row for row in entries(0, 40).to_pylist() if row["batch_id"] != 5]  # which bronze and silver lack
    write_deltalake(find_table_folder(lake, LEDGER), pa.Table.from_pylist(ledger, entries(0, 1).schema))
    complete = answer_report_questions(read_report_contents(lake.reader(), lake.settings))[0]
    hole = sum(part["messages"] for part in entries(20, 24).to_pylist()[0]["offsets"])
    assert (complete.verdict, complete.figure) == (AnswerVerdict.NO, f"{hole} missing")
    compacted = lake.settings.kafka.model_copy(update={"allow_offset_gaps": True})
    settings = lake.settings.model_copy(update={"kafka": compacted})
    complete = answer_report_questions(read_report_contents(lake.reader(), settings))[0]
    assert complete.verdict == AnswerVerdict.YES
    assert complete.detail.startswith("no message occurs twice in ")
    write_deltalake(find_table_folder(lake, LEDGER), entries(4, 12), mode="append")
    assert answer_report_questions(read_report_contents(lake.reader(), settings))[0].verdict == AnswerVerdict.NO


def test_the_page_replaces_the_one_before_and_leaves_nothing_beside_it(lake):
    written = [write_report(lake.reader(), lake.settings) for _ in range(2)]
    assert written == [lake.settings.home.resolve() / "report.html"] * 2
    assert [file.name for file in lake.settings.home.iterdir()] == ["report.html"]


def test_the_command_says_where_the_page_is_and_opens_it_only_if_asked(tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    file = tmp_path / "own.html"
    environment = {"SESSIONLAKE_HOME": str(tmp_path / "home")}
    done = CliRunner().invoke(cli.app, ["report", "--output", str(file)], env=environment)
    assert (done.exit_code, Path(done.stdout.strip()), opened) == (0, file, [])
    done = CliRunner().invoke(cli.app, ["report", "--open"], env=environment)
    assert done.stderr == "no browser can be opened on this machine\n"  # `append` says nothing
    assert opened == [(tmp_path / "home" / "report.html").as_uri()]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    environment = {"SESSIONLAKE_HOME": str(tmp_path / "home")}
    done = CliRunner().invoke(cli.app, ["report", "--output", str(tmp_path / "no" / "own.html")], env=environment)
    assert done.exit_code == 1
    assert "own.html.new cannot be written: No such file or directory" in done.stderr


def test_the_topics_with_most_come_first_and_the_others_are_added_up():
    found = arrange_counts_by_topic_and_category(
        {(f"t{n:02}", kind): n for n in range(1, 31) for kind in ("gap", "late")}, ("late", "orphan")
    )
    assert found.categories == ("late", "orphan", "gap")
    assert [topic for topic, _ in found.topics] == [f"t{n:02}" for n in range(30, 10, -1)]
    assert found.others == (10, (55, 0, 55))
    assert (found.sums, found.total) == ((465, 0, 465), 930)
    assert (found.compute_color_strength_of_count(30), found.compute_color_strength_of_count(0)) == (100, 0)


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (words.format_duration(0), "0\u00a0s"), (words.format_duration(0.04), "40\u00a0ms"),
        (words.format_duration(9.94), "9.9\u00a0s"),
        (words.format_duration(119), "119\u00a0s"), (words.format_duration(120), "2\u00a0min"),
        (words.format_duration(3 * 86_400), "3\u00a0d"),
        (words.format_data_size(999), "999\u00a0B"), (words.format_data_size(1000), "1.0\u00a0kB"),
        (words.format_data_size(45_300_000), "45\u00a0MB"),
        (words.format_percentage(0, 7), "none"), (words.format_percentage(1, 10**6), "<0.01\u00a0%"),
        (words.format_percentage(1, 3), "33.33\u00a0%"),
        (words.format_name("a\x00b\u202ec"), "a�b�c"), (words.format_name(""), "(empty)"),
        (words.format_count_with_noun(2, "batch"), "2 batches"), (words.format_name("x" * 48), "x" * 48),
        (words.format_name("x" * 49), "x" * 47 + "…"),
    ],
)  # fmt: skip
def test_numbers_times_and_names_as_they_are_written(made, written):
    assert made == written


def test_the_alerts_that_stand_are_drawn_and_the_retracted_are_not(lake):
    minute_ = timedelta(minutes=1)
    write_deltalake(
        find_table_folder(lake, RULE_EVENTS),
        pa.table(
            {
                "rule": ["hot", "hot", "hot", "cold", "gone", "gone"],
                "topic": ["capture.a"] * 6,
                "session_id": ["s"] * 6,
                "partition": pa.array([1] * 6, pa.int32()),
                "row_id": pa.array([None] * 6, pa.string()),
                "value": pa.array([None] * 6, pa.string()),
                "event": ["raised", "cleared", "raised", "raised", "raised", "retracted"],
                "retracts": [None] * 5 + ["raised"],
                "window_end": pa.array(
                    [NOON, NOON + minute_, NOON + 3 * minute_, NOON + 2 * minute_, NOON, NOON],
                    pa.timestamp("us", "UTC"),
                ),
            }
        ),
    )
    found = read_latest_alerts(lake.reader())
    key = ("capture.a", "s", "partition 1")
    assert [(one.rule, one.key) for one in found] == [("hot", key), ("cold", key)]
    assert found[0].spans == ((NOON, NOON + minute_), (NOON + 3 * minute_, None))
    shown = seen(lake)
    assert shown.charts == ["When rules were raised and cleared, over event time"]
    assert render_page(read_report_contents(lake.reader(), lake.settings)).count("<b>stands</b>") == 2
