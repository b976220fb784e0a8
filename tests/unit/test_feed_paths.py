"""A path gives the value that its text says, or is missing; a path that cannot be read is refused at its character."""

from __future__ import annotations

import pytest

from sessionlake.feeds.path_parsing import parse_feed_path
from sessionlake.feeds.paths import MISSING, PathConstant, PathContext, find_elements_at_path, find_value_at_path

VALUE = {
    "a": {"b": [1, 2, {"c": None}], "x.y": {"z": "t"}},
    "data": [{"s": "u", "levels": [[1, 2], [3, 4]]}, {"s": "v", "levels": []}, {"s": "w"}],
    "state": {"on": True, "off": None},
    "text": "p/q/r",
}
PLACE = PathContext(
    VALUE, "shop.a", 3, 7, 1_000, "k/1", {"source": "one", "a.b": "two"}, {"p": 1, "n": {"m": 2}}, VALUE["a"]
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.b[0]", 1),
        ("a.b[-1].c", None),
        ("a.b[3]", MISSING),
        ("a.b[-4]", MISSING),
        ("a.b[1:]", [2, {"c": None}]),
        ("a.b[:-2]", [1]),
        ('a."x.y".z', "t"),
        ("a.b.c", MISSING),
        ("a[0]", MISSING),
        ("text[0]", MISSING),
        ("nothing.at.all", MISSING),
        (".", {"p": 1, "n": {"m": 2}}),
        (".n.m", 2),
        (".q", MISSING),
        ("^.b[1]", 2),
        ("kafka.topic", "shop.a"),
        ("kafka.partition", 3),
        ("kafka.offset", 7),
        ("kafka.timestamp", 1_000),
        ("kafka.key", "k/1"),
        ("kafka.headers.source", "one"),
        ('kafka.headers."a.b"', "two"),
        ("kafka.headers.none", MISSING),
        ("=ask", PathConstant("ask")),
        ("=", PathConstant("")),
        ("none | a.b[0]", 1),
        ("a.b[-1].c | a.b[0]", None),  # null is there
        ("none | nor.this", MISSING),
        ("none | =0", PathConstant("0")),
        ('parts(kafka.key, "/")[1]', "1"),
        ('parts(text, "/")[-1]', "r"),
        ('parts(text, "/")[3]', MISSING),
        ('parts(a, "/")[0]', MISSING),
    ],
)
def test_a_path_gives_what_it_says(path, value):
    assert find_value_at_path(parse_feed_path(path), PLACE) == value


def test_a_message_that_is_an_array_has_elements_of_its_own():
    place = PathContext([0, {"a": [[1]]}, {"a": [[2], [3]], "c": "9"}, "book", "pair"], "t", 0, 0, 0, None, {})
    assert find_value_at_path(parse_feed_path("[-1]"), place) == "pair"
    assert find_value_at_path(parse_feed_path("[-3].c"), place) == "9"
    assert [one.value for one in find_elements_at_path(parse_feed_path("[1:-2][*].a[*]"), place) or []] == [
        [1],
        [2],
        [3],
    ]
    assert find_value_at_path(parse_feed_path("kafka.key"), place) is MISSING


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("data[*].s", ["u", "v", "w"]),
        ("data[*].levels[*]", [[1, 2], [3, 4]]),
        ("data[0].levels[*][0]", [1, 3]),
        ("data[1:][*].s", ["v", "w"]),
        ("none[*]", []),
        ("state.off[*]", []),  # null has none
        ("text[*]", None),
        ("a[*]", None),
        ("none[*] | data[0].levels[*]", [[1, 2], [3, 4]]),
    ],
)
def test_elements_come_in_order_and_what_has_none_is_reported_apart(path, values):
    found = find_elements_at_path(parse_feed_path(path), PLACE)
    assert (found if found is None else [element.value for element in found]) == values


def test_an_element_knows_what_holds_its_array():
    found = find_elements_at_path(parse_feed_path("data[*].levels[*]"), PLACE) or []
    assert [element.parent["s"] for element in found] == ["u", "u"]
    entries = find_elements_at_path(parse_feed_path("entries(state)"), PLACE) or []
    assert [(entry.value.key, entry.value.value) for entry in entries] == [("on", True), ("off", None)]
    assert find_elements_at_path(parse_feed_path("entries(text)"), PLACE) is None


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "a name is missing|alternative is empty"),
        ("a..b", "character 3"),
        ("a.b[", "bracket at character 4 is not closed"),
        ("a.b[x]", r"\[x\] at character 4"),
        ("a b", "character 2 is ' '"),
        ("a | ", "alternative is empty|character"),
        ("kafka.offsets", "kafka.offset"),
        ("kafka.headers", "name a header"),
        ("parts(a)[0]", "write parts"),
        ('parts(a, "/")', "write parts"),
        ("entries(a).b", "nothing follows"),
        ('"a', "character 1"),
        ("1a", "quote"),
    ],
)
def test_a_path_that_cannot_be_read_is_refused_with_its_place(path, why):
    with pytest.raises(ValueError, match=why):
        parse_feed_path(path)
