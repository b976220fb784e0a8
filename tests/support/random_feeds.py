"""Random feeds, and random messages of which they read some."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from sessionlake.feeds.reader import KafkaRecord

ARRAYS, FIELDS = "ac", "abcdkvw"
_TEXT_DECIMAL = {"type": "decimal(6,2)", "from": "text"}
_TYPES = (_TEXT_DECIMAL, *("string",) * 3, *("variant",) * 2, "bigint", "double", "decimal(6,2)", "boolean")
_ODD_LEAVES = ("bid", "1.5", "", 0, -0.0, 1.5, 10**25, 2**63, True, None)
Names = dict[str, Any]


def random_feed(rnd: random.Random) -> Names:
    """Settings of a feed, many of which are valid. Some rules split messages."""
    columns = {"k": rnd.choice(["string", "string", "string", "bigint", _TEXT_DECIMAL])}
    columns |= {name: rnd.choice(_TYPES) for name in "vw"}
    key = ["k"]
    if rnd.random() < 0.3:
        key, columns["v"] = ["k", "v"], rnd.choice(["string", "bigint"])
    splits = [random_elements(rnd, in_part=False) for _ in range(rnd.choice([1, 1, 2]))]
    rules = [random_rule(rnd, rnd.choice([None, *splits, *splits]), columns, key) for _ in range(rnd.randint(1, 4))]
    feed: Names = {"name": "f", "topics": "rows", "key": key, "columns": columns, "messages": rules}
    feed["session"] = [random_path(rnd, in_part=all("split" in rule for rule in rules))]
    feed["time"] = rnd.choice(
        [
            {"path": "t", "unit": "ms", "else": "kafka.timestamp"},
            {"path": ".s | s", "from": "iso", "else": "kafka.timestamp"},
            {"path": "kafka.timestamp"},
        ]
    )
    order = rnd.choice([{}, {}, {"seq": "n"}, {"seq": "n", "after": "p"}, {"seq": "n", "first": "p"}])
    if order:
        chain = {"chain": rnd.choice(["c", "d", "kafka.topic"])} if rnd.random() < 0.4 else {}
        feed["order"] = order | chain
    for name, value, share in (("repeats", "refuse", 0.2), ("rescue", True, 0.2), ("unavailable", ["x"], 0.15)):
        if rnd.random() < share:
            feed[name] = value
    return feed


def random_rule(rnd: random.Random, split: str | None, columns: Names, key: list[str]) -> Names:
    """A rule of a feed."""
    in_part, kind = split is not None, rnd.choice(["update", "update", "update", "snapshot", "ignore", "heartbeat"])
    rule: Names = {"is": kind}
    if split is not None:
        rule["split"] = {"each": split}
    if rnd.random() < 0.6:
        path = random_path(rnd, in_part=in_part).split(" | ")[0]
        rule["when"] = {path: rnd.choice(["present", "present", "absent", 1, "x", ["x", 1, None], True])}
    if kind in {"update", "snapshot"}:
        rule["rows"] = [random_rows(rnd, columns, key, in_part=in_part) for _ in range(rnd.randint(1, 2))]
    if kind == "snapshot" and rnd.random() < 0.3:
        rule["scope"] = {rnd.choice(key): random_path(rnd, in_part=in_part)}
    if kind == "snapshot" and rnd.random() < 0.2:
        rule["restart"] = True
    if kind != "ignore" and rnd.random() < 0.3:
        rule["session"] = [random_path(rnd, in_part=in_part) for _ in range(rnd.randint(1, 2))]
    return rule


def random_rows(rnd: random.Random, columns: Names, key: list[str], *, in_part: bool) -> Names:
    """An entry of a rule's `rows`."""
    rows: Names = {}
    if rnd.random() < 0.5:
        rows["each"] = random_elements(rnd, in_part=in_part)
    elif rnd.random() < 0.2:
        rows["at"] = rnd.choice([".", ""] if in_part else [""]) + rnd.choice(["b", "a[0]", "d"])
    inside = in_part or bool(rows)
    if rnd.random() < 0.15:
        return rows | {"row": "all"}
    row = {name: random_path(rnd, in_part=inside) for name in columns if name in key or rnd.random() < 0.7}
    delete = {"delete": {"w": None}} if "w" in row and rnd.random() < 0.3 else {}
    return rows | {"row": row} | delete


def random_path(rnd: random.Random, *, in_part: bool) -> str:
    """A path of a value, which may have alternatives and a constant."""
    alternatives = [_random_access(rnd, in_part=in_part) for _ in range(rnd.choice([1, 1, 1, 2]))]
    constant = [f"={rnd.choice(['1', '1', 'x'])}"] if rnd.random() < 0.6 else []
    return " | ".join(alternatives + constant)


def _random_access(rnd: random.Random, *, in_part: bool) -> str:
    name = rnd.choice("dkvw")
    field = rnd.choice([name, name, name, f"b.{name}", "a[0].d", "c[-1].k", rnd.choice(FIELDS)])
    of_message = [field, field, "kafka.topic", "kafka.partition", "kafka.key"]
    of_part = [f".{field}", f".{field}", f"^.{field}", ".key", f".value.{name}"]
    return rnd.choice([*of_message, *of_part * 2] if in_part else of_message)


def random_elements(rnd: random.Random, *, in_part: bool) -> str:
    """A path of several elements."""
    start = rnd.choice(["", ".", ".value."] if in_part else [""])
    forms = ["a[*]", "a[*]", "c[*]", "b.a[*]", "a[*].c[*]", "entries(b)", "a[1:][*]", "c[*].b", "d[*]"]
    path = rnd.choice(forms)
    return path.replace("(", f"({start}") if "(" in path else f"{start}{path}"


def random_records(rnd: random.Random, count: int) -> list[KafkaRecord]:
    """Messages, of which many have the same elements several times."""
    bodies = [_random_body(rnd) for _ in range(8)]
    found = []
    for offset in range(count):
        body = copy.deepcopy(rnd.choice(bodies)) if rnd.random() < 0.7 else _random_body(rnd)
        _repeat_elements(rnd, body)
        key = rnd.choice([None, b"k/1", b"x"])
        found.append(KafkaRecord("rows", 3, offset, 1_000, key, json.dumps(body).encode(), {}))
    return found


def _random_body(rnd: random.Random) -> Names:
    numbers = {"n": rnd.choice([1, 2, 3, 5, "7", -1, 2**62]), "p": rnd.choice([0, 1, 2]), "t": rnd.choice([5, None])}
    return _random_object(rnd, 0) | numbers


def _random_object(rnd: random.Random, depth: int) -> Names:
    names = "acbdkvws" if depth < 3 else "dkvws"
    return {name: _random_value(rnd, name, depth) for name in names if rnd.random() < 0.85}


def _random_value(rnd: random.Random, name: str, depth: int) -> Any:
    """A value that is usual for a field: an array for `a` and `c`, an object for `b`, and a text or number else."""
    if name == "s":
        return rnd.choice(["2026-01-31T00:00:00Z", "2026-01-31T00:00:00.5Z"] if rnd.random() < 0.9 else ["soon", 5])
    usual = name if rnd.random() < 0.9 else rnd.choice(FIELDS)
    if usual in ARRAYS:
        return [_random_object(rnd, depth + 1) for _ in range(rnd.randint(0, 3))] if depth < 3 else []
    if usual == "b" and depth < 3:
        return _random_object(rnd, depth + 1)
    return rnd.choice(_ODD_LEAVES if rnd.random() < 0.1 else ("x", "A", "1", "2"))


def _repeat_elements(rnd: random.Random, value: Any) -> None:
    """Repeats elements of arrays anywhere in the value."""
    for inner in [*value.values()] if isinstance(value, dict) else [*value] if isinstance(value, list) else ():
        _repeat_elements(rnd, inner)
    if isinstance(value, list) and value and rnd.random() < 0.5:
        value += [copy.deepcopy(rnd.choice(value)) for _ in range(rnd.randint(1, 2))]
