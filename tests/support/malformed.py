"""Makes malformed messages for each reason of the protocol, on both sides of each limit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

SKEW = 86_400_000
MAX_BYTES = 4_096


class Broken(NamedTuple):
    """Replacement for a valid message. `key` is the original one unless given."""

    value: bytes | None
    key: Any = ...


Maker = Callable[[random.Random, dict[str, Any], int], Broken]


def _text(body: object) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _key(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
    return Broken(_text(body), rnd.choice([None, b"", b"x" * 257, b"\xff", b"a\nb", b"\x00", "\x85".encode(), b"\x7f"]))


def _too_large(_: random.Random, body: dict[str, Any], __: int) -> Broken:
    return Broken(_text(body).ljust(MAX_BYTES + 1))


def _just_not_too_large(_: random.Random, body: dict[str, Any], __: int) -> Broken:
    return Broken(_text(body).ljust(MAX_BYTES))


def _bytes(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
    text = _text(body)
    at = rnd.randrange(len(text))
    return Broken(
        rnd.choice([text[:at] + b"\xff" + text[at:], text[:at], text + b"x", b"\xef\xbb\xbf" + text, b"", None])
    )


def _not_utf8(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
    return Broken(_text({**body, "x": "?"}).replace(b"?", rnd.choice([b"\xff", b"\xc3", b"\xed\xa0\x80"])))


def _spelling(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
    raw = rnd.choice(_SPELLINGS)
    place = rnd.choice(["unknown", "seq", "rows", "ts"])
    # Last or first: a field that a later one with the same name replaces must still be valid JSON.
    return Broken(_with_raw(body, place, raw, last=rnd.random() < 0.5))


def _with_raw(body: dict[str, Any], name: str, raw: str, *, last: bool) -> bytes:
    text = json.dumps(body)
    return (f'{text[:-1]},"{name}":{raw}}}' if last else f'{{"{name}":{raw},{text[1:]}').encode()


def _deep(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
    levels = rnd.choice([62, 63, 64, 500, 5_000 // 4])
    opened, closed = rnd.choice([("[", "]"), ('{"a":', "}")])
    middle = "1" if opened != "[" else ""
    tail = rnd.choice(["", "", "", "]", "}", ",1"])
    raw = opened * levels + middle + closed * (levels - (rnd.random() < 0.1)) + tail
    return Broken(_with_raw(body, rnd.choice(["unknown", "rows", "seq"]), raw, last=rnd.random() < 0.5))


def _not_object(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
    return Broken(_text(rnd.choice([[body], "text", 1, None, True, []])))


def _field(name: str, *values: object) -> Maker:
    def make(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
        if rnd.random() < 0.2:
            body.pop(name, None)
        else:
            body[name] = rnd.choice(values)
        return Broken(_text(body))

    return make


def _future(rnd: random.Random, body: dict[str, Any], timestamp: int) -> Broken:
    return Broken(_text({**body, "ts": timestamp + SKEW + rnd.choice([1, 10**9])}))


def _row(name: str, *values: object) -> Maker:
    def make(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
        row = {"id": "r0", "price": 1.0, name: rnd.choice(values)}
        if name == "id" and rnd.random() < 0.2:
            del row["id"]
        return Broken(_text({**body, "type": rnd.choice(["snapshot", "update"]), "rows": [{"id": "first"}, row]}))

    return make


def _rows(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
    return Broken(
        _text({**body, "type": rnd.choice(["snapshot", "update", "heartbeat"]), "rows": rnd.choice(_BAD_ROWS)})
    )


def _twice(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
    rows = [{"id": row_id} for row_id in rnd.choice([("a", "a"), ("a", "b", "a"), ("ä", "b", "ä")])]
    return Broken(_text({**body, "type": rnd.choice(["snapshot", "update"]), "rows": rows}))


def _deleted(rnd: random.Random, body: dict[str, Any], _: int) -> Broken:
    wrong = rnd.choice([None, "r0", [1], [""], ["x" * 1025], {}, [None], ["r0", ["r1"]]])
    return Broken(_text({**body, "type": rnd.choice(["update", "snapshot", "end"]), "deleted": wrong}))


def _several(rnd: random.Random, body: dict[str, Any], timestamp: int) -> Broken:
    """Breaks two rules at once. The reason is the first in the protocol's order."""
    for name, value in rnd.sample(list(_WRONG.items()), 2):
        body[name] = timestamp + 2 * SKEW if name == "ts" and rnd.random() < 0.5 else value
    return Broken(_text(body), rnd.choice([..., ..., b"\xff"]))


_SPELLINGS = ["NaN", "-Infinity", "1e999", "-1e400", "01", "1.", "nul", "9" * 4301, "9" * 4300, "[1,]", "'a'"]
_SPELLINGS += ['"\x01"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\\\ud800"', '"\\x"']
_BAD_ROWS = [None, {}, "x", [1], [None], [[]], [{"id": "a"}, "b"], [{"id": "a"}, {"id": "a"}], [{}, {}]]
_WRONG: dict[str, Any] = {"type": "upsert", "seq": -1, "ts": "now", "rows": [{"id": 1}], "deleted": 7}

_YES, _NO = True, False

MALFORMED: tuple[Maker, ...] = (
    _key,
    _too_large,
    _just_not_too_large,
    _bytes,
    _not_utf8,
    _spelling,
    _deep,
    _not_object,
    _field("type", "Snapshot", None, 1, "", ["update"], {}),
    _field("seq", -1, 1.0, 1.5, "1", None, _YES, 2**63, 10**400, [1]),
    _field("ts", 1.0, "1", None, _NO, 2**63, -(2**63) - 1, -(10**4299)),
    _future,
    _rows,
    _twice,
    _row("id", 1, None, "", "x" * 1025, "é" * 513, ["a"], "first"),
    _row("price", "7", _YES, 10**309, [1], {}),
    _row("qty", 1.0, 2**63, -(2**63) - 1, "1", _NO),
    _row("status", 1, _NO, ["a"]),
    _row("flag", 0, "true"),
    _row("ratio", 3.4028236e38, 10**39, "0", _YES),
    _row("tiny", 128, -129, 1.5),
    _row("small", 2**15),
    _row("whole", -(2**31) - 1),
    _deleted,
    _several,
)
