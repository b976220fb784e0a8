"""Finds the text whose CRC32 the checksums in messages are, for `sessionlake feed infer`.

The rows of the sample are computed, and each usual form of such a text is tried on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import Any

from sessionlake.feeds.checksums import Crc32
from sessionlake.feeds.inference.propose import Proposal
from sessionlake.feeds.inference.sample import Sample, get_field_name
from sessionlake.feeds.inference.words import CHECKSUMS, OF_QUANTITY, SIDES
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.feeds.trial import Trial
from sessionlake.settings.feeds import FeedSettings

_ROWS = (5, 10, 20, 25, 50, 100, 200, 400)
_SEPARATORS = ("", ":", ",", "|", "-", "_")
_KEPT = 1_000
_COMPARED = 200
"""Most checksums of the sample that are compared."""
_FEWEST = 3
"""Fewest checksums that show that a form is the right one."""
Groups = Mapping[tuple[Any, ...], Sequence[Mapping[str, Any]]]


def propose_checksum(proposal: Proposal, sample: Sample, records: Sequence[KafkaRecord]) -> Proposal:
    """Returns the proposal with `keep` and `check` added, if messages have a CRC32 of the best rows of an order book.

    Otherwise the proposal is returned unchanged, or with a note about a field that may be a checksum.

    Args:
        proposal: A valid proposal of a feed.
        sample: The messages with their fields by path.
        records: The messages.
    """
    path = _find_checksum_path(sample)
    settings = None if path is None else _add_keep_and_text_columns(proposal.settings)
    if path is None or settings is None:
        return proposal
    columns = [*settings["columns"]][-2:]
    sides = [settings["keep"]["descending"][0], *_list_words_of_side(settings["messages"], "ask")]
    widest = _build_check_setting(path, _ROWS[-1], Crc32((*sides,), (*columns,)))
    compared = _collect_checked_rows(settings | {"check": widest}, records)
    if len(compared) < _FEWEST:
        note = f"{path} may be a checksum, but only {len(compared)} of them are in messages that change these rows"
        return replace(proposal, notes=[*proposal.notes, f"{note}; add it as check, if its sender documents it"])
    for rows, crc32 in _list_checksum_forms(sides, columns):
        if all(crc32.fits({group: found[:rows] for group, found in groups.items()}, sent) for groups, sent in compared):
            messages = settings.pop("messages")
            settings |= {"check": _build_check_setting(path, rows, crc32), "messages": messages}
            return replace(proposal, settings=settings)
    note = f"{path} may be a checksum, of none of the usual forms; add it as check, if its sender documents it"
    return replace(proposal, notes=[*proposal.notes, note])


def _find_checksum_path(sample: Sample) -> str | None:
    """Returns the path of a field whose name and values look like a 32-bit checksum; None if there is none."""
    counts = Counter(
        path for one in sample.messages for path in one.scalars if get_field_name(path).lower() in CHECKSUMS
    )
    for path, count in counts.most_common():
        values = [str(one.scalars[path]) for one in sample.messages if path in one.scalars]
        is_number = all(len(value) <= len(str(-(2**32))) and value.lstrip("-").isdigit() for value in values)
        if count >= _FEWEST and is_number and len({*values}) > count // 2:
            return path
    return None


def _add_keep_and_text_columns(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the settings with `keep`, and with columns for the digits as sent; None if it is no order book."""
    found = deepcopy(dict(settings))
    columns, parts = found["columns"], [part for rule in found["messages"] for part in rule.get("rows", ())]
    bids, asks = _list_words_of_side(found["messages"], "bid"), _list_words_of_side(found["messages"], "ask")
    quantity = next((name for name in columns if OF_QUANTITY.search(name)), None)
    if found["key"][:1] != ["side"] or len(found["key"]) != len(("side", "price")) or quantity is None:
        return None
    if (len(bids), len(asks)) != (1, 1) or not all(isinstance(part["row"], dict) for part in parts):
        return None
    for name in (found["key"][1], quantity):
        is_text = isinstance(columns[name], dict) and columns[name].get("from") == "text"
        columns[f"{name}_text"] = "string" if is_text else {"type": "string", "from": "digits"}
        for part in parts:
            part["row"][f"{name}_text"] = part["row"][name]
    messages = found.pop("messages")
    keep = {"per": ["side"], "best": found["key"][1], "descending": bids, "rows": _KEPT}
    return found | {"keep": keep, "messages": messages}


def _list_words_of_side(rules: Sequence[Mapping[str, Any]], side: str) -> list[str]:
    """Returns the words that rules write into the column `side` for bids or asks, sorted.

    Args:
        rules: The rules of the feed, as its settings have them.
        side: `bid` or `ask`.
    """
    words = {str(part["row"].get("side", ""))[1:] for rule in rules for part in rule.get("rows", ())
             if isinstance(part["row"], dict)}  # fmt: skip
    return sorted(word for word in words if SIDES.get(word.lower()) == side)


def _collect_checked_rows(settings: dict[str, Any], records: Sequence[KafkaRecord]) -> list[tuple[Groups, Any]]:
    """Returns, for each message with a checksum, the table's best rows after it by group, and the checksum.

    Args:
        settings: The settings of a feed with `keep` and `check`.
        records: The messages.
    """
    compared: list[tuple[Groups, Any]] = []

    def compare(groups: Groups, sent: Any) -> bool:
        if len(compared) < _COMPARED:
            compared.append(({group: [dict(row) for row in rows] for group, rows in groups.items()}, sent))
        return True

    feed = FeedSettings.model_validate(settings).build()
    if feed.check is None:
        return []
    feed = replace(feed, check=replace(feed.check, load=lambda: compare))
    trial = Trial([feed], only=feed)
    for record in records:
        trial.read(record)
        if len(compared) == _COMPARED:
            break
    return compared


def _list_checksum_forms(sides: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, Crc32]]:
    """Yields the usual forms of the text that a checksum covers, each with a number of rows per side."""
    for groups, is_mixed, between, digits_only, rows in product(
        (sides, sides[::-1]), (True, False), _SEPARATORS, (False, True), _ROWS
    ):
        yield rows, Crc32((*groups,), (*columns,), is_mixed, between, between, digits_only=digits_only)
    for groups, rows in product((sides, sides[::-1]), _ROWS):
        yield rows, Crc32((*groups,), (*columns,), between_values=":", between_rows=",", between_groups="|")


def _build_check_setting(path: str, rows: int, crc32: Crc32) -> dict[str, Any]:
    """Returns a feed's setting `check`, as nested dictionaries.

    Args:
        path: Path of the checksum in a message.
        rows: Number of rows of each group that the checksum covers.
        crc32: The form of the text whose CRC32 the checksum is.
    """
    found: dict[str, Any] = {"groups": [*crc32.groups], "columns": [*crc32.columns]}
    if crc32.between_groups is not None:
        found["separator"] = {
            "values": crc32.between_values, "rows": crc32.between_rows, "groups": crc32.between_groups
        }  # fmt: skip
    elif crc32.between_values:
        found["separator"] = crc32.between_values
    found |= {name: True for name in ("interleaved", "digits_only") if getattr(crc32, name)}
    return {"checksum": path, "rows": rows, "crc32": found}
