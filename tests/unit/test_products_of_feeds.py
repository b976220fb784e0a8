"""Products, averages and rules that name a feed take only the topics that silver reads with this feed."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sessionlake.feeds.topics import FeedTopics
from sessionlake.gold.aggregate.late import APPLIED
from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, TURN
from sessionlake.gold.aggregate.sources import POINTS, DeclaredColumns, FeedEvents
from sessionlake.gold.aggregate.standard import STANDARD
from sessionlake.gold.changes import get_value_columns
from sessionlake.gold.declared.tables import list_declared_averages, list_declared_products
from sessionlake.gold.fold.point_changes import select_changes_with_points
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.rules.rules_file import StoredRule, parse_rules_file
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.settings.model import Settings
from support.seeds import examples

COLUMNS = {"id": "string", "price": "double", "status": "string"}
PATTERNS = {"bids": r"md\.b.*", "books": r"md\.(b|c).", "others": r".*"}
TOPICS = ["md.b", "md.bx", "md.cx", "md.bxx", "plant", "md.c"]
DECLARED = DeclaredColumns(("price",), ("status",))


def settings(*feeds: str, **gold: Any) -> Settings:
    made = [{"name": name, "uses": "sessionlake", "topics": PATTERNS[name], "columns": COLUMNS} for name in feeds]
    return Settings.model_validate({"capture": {"feeds": made}, "gold": gold})


def product(name: str = "own", **changed: Any) -> dict[str, Any]:
    return {"name": name, "keys": ["topic"], "aggregates": {"n": "count", "total": "sum"}} | changed


def changes(topics: list[str]) -> pa.Table:
    numbers = dict.fromkeys(("ts", "position", "offset", "kafka_ms", TURN))
    same = {"session_id": "x", "row_id": "x", "partition": 0, "ordinal": 0, APPLIED: 10_000_000, LIFE: NO_LIFE}
    same |= {"value:0": 1.5, "text:0": "on"}
    kinds = {str: pa.string(), float: pa.float64(), int: pa.int64()}
    schema = [("topic", pa.string())] + [(name, kinds[type(value)]) for name, value in same.items()]
    schema = pa.schema(schema + [(name, pa.int64()) for name in numbers])
    rows = [{"topic": topic} | same | dict.fromkeys(numbers, place) for place, topic in enumerate(topics)]
    table = pa.Table.from_pylist(rows, schema)
    for name in ("partition", "ordinal"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int32()))
    return table


@pytest.mark.parametrize("order", [["bids", "books", "others"], ["books", "bids", "others"], ["others", "bids"]])
def test_a_feed_has_the_topics_that_silver_reads_with_it(order: list[str]) -> None:
    capture = settings(*order).capture
    lookup = JudgingRuleLookup(capture)
    for name in order:
        topics = capture.find_feed_topics(name)
        own = [topic for topic in TOPICS if lookup.find_feed(topic).name == name]
        assert [topic for topic in TOPICS if topics.includes_topic(topic)] == own


@examples(usual=30, in_all=200)
@given(st.lists(st.sampled_from(TOPICS), max_size=12), st.lists(st.integers(0, 12), max_size=3))
def test_in_any_batches_a_product_has_the_changes_of_its_feed_alone(topics: list[str], cuts: list[int]) -> None:
    of_feed = product("of_feed", feed="books"), product("texts", feed="books", of="texts", aggregates={"n": "count"})
    found = list_declared_products(settings("bids", "books", products=of_feed))[len(STANDARD) :]
    wanted = {topic: topics.count(topic) for topic in topics if topic == "md.cx"}
    edges = [0, *sorted(min(cut, len(topics)) for cut in cuts), len(topics)]
    for one in found:
        rows = one.arrow_schema().empty_table()
        for first, end in pairwise(edges):
            rows = one.merge_rows(pa.concat_tables([rows, one.aggregate_changes(changes(topics[first:end]), DECLARED)]))
        assert {row["topic"]: row["n"] for row in rows.to_pylist()} == wanted
        assert all(row.get("total", 1.5 * row["n"]) == 1.5 * row["n"] for row in rows.to_pylist())


def test_a_late_change_of_another_feed_is_no_late_point_of_the_product() -> None:
    late = product(feed="bids", bucket="1 minute", lateness="1 minute", keys=["topic", "metric"])
    [found] = list_declared_products(settings("bids", "books", products=[late]))[len(STANDARD) :]
    assert found.select_late_rows(changes(["md.cx", "md.bx"]), DECLARED)["topic"].to_pylist() == ["md.bx"]
    assert found.aggregate_changes(changes(["md.cx", "md.bx"]), DECLARED).num_rows == 0


@pytest.mark.parametrize("keys", [["topic", "metric"], ["topic", "session_id", "metric"]])
def test_an_average_has_the_points_of_its_feed_alone(keys: list[str]) -> None:
    averages = [{"name": "own", "keys": keys, "feed": "books"}]
    *_, series = list_declared_averages(settings("bids", "books", averages=averages))
    found = select_changes_with_points(changes(["md.bx", "md.cx", "plant"]), DECLARED, series)
    assert found is not None
    assert found["offset"].to_pylist() == [1]
    assert select_changes_with_points(changes(["md.bx"]), DECLARED, series) is None


def test_the_logic_of_tables_with_a_feed_depends_on_its_topics_and_that_of_others_is_as_before() -> None:
    def logic(*feeds: str, feed: str | None) -> tuple[str, str]:
        gold = {
            "products": [product(feed=feed)],
            "averages": [{"name": "a", "keys": ["topic", "metric"], "feed": feed}],
        }
        made = settings(*feeds, **gold)
        return list_declared_products(made)[-1].logic_hash, list_declared_averages(made)[-1].logic_hash

    plain, first, second = (logic("bids", "books", feed=feed) for feed in (None, "bids", "books"))
    assert all(len({*logics}) == len(logics) for logics in zip(plain, first, second, strict=True))
    assert logic("books", "bids", feed="books")[0] != second[0]
    assert RollingAverage("rolling_average").logic_hash == "9ecbce8a0065"
    assert STANDARD[0].logic_hash == "e1524455351e"


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        ({"products": [product(feed="book")]},
         "gold.products: own: feed: there is no feed 'book'; did you mean 'books'? The feeds are bids, books"),
        ({"averages": [{"name": "rolling_average", "feed": "bid"}]},
         "gold.averages: rolling_average: feed: there is no feed 'bid'; did you mean 'bids'?"),
        ({"products": [product(feed="bids", source="silver.session_rows", value="price")]},
         "feed bids: a source table has rows of all feeds"),
        ({"products": [{"name": "own", "python": "a:B", "feed": "bids"}]}, "leave out feed"),
    ],
)  # fmt: skip
def test_a_feed_that_is_not_there_or_cannot_be_used_is_refused(gold: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        settings("bids", "books", **gold)


def test_without_feeds_the_error_says_that_there_is_none() -> None:
    with pytest.raises(ValidationError, match=r"there is no feed .bids., because capture\.feeds is empty"):
        settings(products=[product(feed="bids")])


RULES = """rules:
  - {name: one, when: max(price) over 1 min > 1, feed: books}
  - {name: both, when: max(b.price) over 1 min > max(price) over 1 min, by: [row_id], feed: books,
     sources: {b: {feed: bids, topics: md..*x}}}
  - name: wrong
    when: max(price) over 1 min > 1
    feed: boks
"""


def test_a_rule_reads_the_topics_of_its_feed_alone() -> None:
    rules, problems = parse_rules_file(RULES, get_value_columns(settings("bids", "books")))
    read = {one.rule.name: [topic for topic in TOPICS if one.rule.reads_topic(topic)] for one in rules}
    assert read == {"one": ["md.cx"], "both": ["md.bx", "md.cx", "md.bxx"]}
    assert [*map(str, problems)] == [
        "7:11: rule wrong: feed: there is no feed 'boks'; did you mean 'books'? The feeds are bids, books"
    ]
    assert all(isinstance(one, StoredRule) and "feed: books" in one.text for one in rules)
    [other, _], _ = parse_rules_file(RULES, get_value_columns(settings("books", "bids")))
    assert other.rule.version != rules[0].rule.version


def test_events_of_a_feed_have_the_columns_of_the_events_they_are_selected_from() -> None:
    own = FeedEvents(POINTS, FeedTopics("md.*"))
    assert own.is_numeric
    assert own.extract_events(changes(["md.b"]), DECLARED).schema == POINTS.extract_events(changes([]), DECLARED).schema
