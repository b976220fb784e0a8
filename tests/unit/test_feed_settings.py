"""A feed that cannot be used is refused as the configuration is read, with the key, and what could stand there."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from sessionlake.settings.feeds import FeedSettings
from support.feed_cases import BOOK, KRAKEN


def _rule(**changed: Any) -> dict[str, Any]:
    rule = {"is": "update", "rows": [{"each": "a[*]", "row": {"side": "=bid", "price": ".[0]"}}]}
    return {"messages": [rule | changed]}


ROWS = {"each": "a[*]", "row": {"side": "=bid", "price": ".[0]"}}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"key": ["side", "prise"]}, "the feed declares no column 'prise'; its columns are side, price, qty"),
        ({"key": []}, "at least 1"),
        (
            {"columns": {"side": "string", "price": "float"}},
            "column 'price' is of type float, whose values cannot identify a row",
        ),
        ({"columns": {"topic": "string"}, "key": ["topic"]}, "topic"),
        ({"columns": {"side": "text"}}, "type 'text' is not one of"),
        ({"session": "a..b"}, "character 3"),
        ({"session": 3}, "a path is a text"),
        ({"session": ".s"}, "rule 1: session: the path '.s' begins with a dot, which is only possible after `split`"),
        ({"session": "s[*]"}, "leads to several values"),
        ({"topics": "("}, "not a regular expression"),
        ({"topics": "(a+)+"}, "could take hours"),
        ({"name": "Book-1"}, "pattern"),
        ({"order": {"seq": "u", "after": "v", "first": "w"}}, "found after and first"),
        ({"time": {"path": "t", "unit": "hours"}}, "unit"),
        ({"nonsense": 1}, "Extra inputs"),
        (_rule(**{"is": "upsert"}), "snapshot"),
        (_rule(**{"is": "heartbeat"}), "rule 1: a rule with `is: heartbeat` reads no rows"),
        (_rule(restart=True), "only a rule with `is: snapshot` can have `restart` and `scope`"),
        (_rule(rows=[ROWS | {"row": {"side": "=bid"}}]), "`row` does not set price, which is part of the key"),
        (_rule(rows=[ROWS | {"each": "a"}]), r"leads to one value, .*end it with \[\*\]"),
        (
            _rule(rows=[{"at": "a[*]", "row": "all"}]),
            "leads to several values, but `at` needs one; write `each` instead of `at`",
        ),
        (_rule(rows=[ROWS | {"at": "b"}]), "either `each` .* or `at` .*, not with both"),
        (_rule(rows=[ROWS | {"delete": {"qty": 0}}]), "`delete` uses qty, which `row` does not set"),
        (_rule(rows=[ROWS | {"row": {"side": "=bid", "price": "=x"}}]), "column 'price'.*constant 'x'"),
        (_rule(**{"is": "snapshot"}, scope={"price": "=x"}), "rule 1: scope: column 'price'.*constant 'x'"),
        (_rule(rows=[ROWS | {"row": {"side": "=bid", "price": "b[*]"}}]), "leads to several values"),
        (_rule(when={"body": "number"}), "number"),
        (_rule(when={".x": 1}), "when: the path '.x' begins with a dot"),
        (_rule(split={"each": "a"}), "leads to one value"),
        (
            _rule(order={"seq": "u", "modulo": 256}),
            "rule 1: order.modulo is 256, but order.modulo of the feed is miss",
        ),
        (
            _rule(order={"seq": "u", "modulo": 256}) | {"order": {"seq": "u", "modulo": 512}},
            "order.modulo is 256, but order.modulo of the feed is 512",
        ),
        (_rule(order={"seq": "u"}) | {"order": {"seq": "u", "modulo": 512}}, "order.modulo is missing, but .* is 512"),
        (_rule(order="arrival") | {"order": {"seq": "u", "modulo": 512}}, "rule 1: order.modulo is missing"),
        ({"keep": {"best": "prise", "rows": 3}}, "keep.best: the feed declares no column 'prise'"),
        ({"keep": {"best": "price", "rows": 0}}, "greater than or equal to 1"),
    ],
)
def test_a_feed_that_cannot_be_used_is_refused_with_its_key(changed, why):
    with pytest.raises(ValueError, match=why):
        FeedSettings.model_validate(yaml.safe_load(BOOK) | changed)


def test_feeds_that_the_documentation_shows_are_accepted():
    for text in (BOOK, KRAKEN):
        made = FeedSettings.model_validate(yaml.safe_load(text)).convert_to_feed()
        assert [rule.number for rule in made.rules] == list(range(1, len(made.rules) + 1))
        assert [column.name for column in made.key] == ["side", "price"]


@pytest.mark.parametrize("order", [None, "none", {"seq": "v", "modulo": 512}])
def test_the_order_of_a_rule_may_have_the_modulo_of_its_feed_or_none_at_all(order: Any) -> None:
    feed = yaml.safe_load(BOOK) | _rule(order=order) | {"order": {"seq": "u", "modulo": 512}}
    assert FeedSettings.model_validate(feed).seq_modulo == 512


def test_a_feed_has_links_if_an_order_of_one_of_its_rules_has():
    rule = {"is": "update", "rows": [{"row": "all"}]}
    plain = {"name": "a", "topics": "a", "session": "s", "key": ["id"], "columns": {"id": "string"}}
    link = {"seq": "n", "after": "p"}
    found = [
        FeedSettings.model_validate(plain | given).has_links_to_previous_seq
        for given in (
            {"order": {"seq": "n"}, "messages": [rule]},
            {"order": link, "messages": [rule]},
            {"order": {"seq": "n"}, "messages": [rule | {"order": link}]},
        )
    ]
    assert found == [False, True, True]
