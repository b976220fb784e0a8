"""Finds out of what text a checksum in messages is the CRC32, for `sessionlake feed infer`.

The rows of the sample are computed, and each usual form of such a text is tried on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

from sessionlake.feeds.checksums import Crc32Checksum
from sessionlake.feeds.inference.propose import ProposedFeed
from sessionlake.feeds.inference.sample import SampledMessages, get_field_name
from sessionlake.feeds.inference.words import CHECKSUMS, OF_QUANTITY, SIDES
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.feeds.trial import FeedTrial
from sessionlake.settings.feeds import FeedSettings

_ROWS = (5, 10, 20, 25, 50, 100, 200, 400)
_SEPARATORS = ("", ":", ",", "|", "-", "_")
_KEPT = 1_000
_COMPARED = 200
"""Most checksums of the sample that are compared."""
_MODULO = 2**32
_TRIED = 4
"""Most fields that are tried as checksums."""
_FEWEST_RISES = 0.25
"""Least share of checksums that are above, and below, the one before. Times and counters only rise."""
_FEWEST = 3
"""Fewest checksums that show that a form is the right one."""
Groups = Mapping[tuple[Any, ...], Sequence[Mapping[str, Any]]]


def propose_checksum(proposal: ProposedFeed, sample: SampledMessages, records: Sequence[KafkaRecord]) -> ProposedFeed:
    """Returns the proposal with `keep` and `check` if messages have a CRC32 of the best rows of an order book.

    Args:
        proposal: A valid proposal.
        sample: The messages, taken apart.
        records: The messages.
    """
    paths = _list_fields_that_may_be_checksums(sample)
    settings = _add_columns_with_sent_digits(proposal.settings) if paths else None
    if settings is None:
        return proposal
    columns = [*settings["columns"]][-2:]
    sides = [settings["keep"]["descending"][0], *_list_words_for_side(settings["messages"], "ask")]
    notes = []
    for path in paths:
        widest = _build_crc32_check_setting(path, _ROWS[-1], Crc32Checksum((*sides,), (*columns,)))
        compared = _collect_best_rows_and_checksums(settings | {"check": widest}, records)
        why = f"but only {len(compared)} of them are in messages that change these rows"
        if len(compared) >= _FEWEST:
            if forms := _find_matching_crc32_forms(compared, sides, columns):
                messages = settings.pop("messages")
                settings |= {"check": _build_crc32_check_setting(path, *forms[0]), "messages": messages}
                counts = ", ".join(str(rows) for rows, _ in forms)
                note = f"the checksums fit with check.rows {counts} alike; set the number that their sender documents"
                return replace(proposal, settings=settings, notes=[*proposal.notes, *[note] * (len(forms) > 1)])
            why = "of none of the usual forms"
        if _is_named_as_checksum(path):
            notes.append(f"{path} may be a checksum, {why}; add it as check, if its sender documents it")
    return replace(proposal, notes=[*proposal.notes, *notes[:1]])


def _find_matching_crc32_forms(
    compared: Sequence[tuple[Groups, Any]], sides: Sequence[str], columns: Sequence[str]
) -> list[tuple[int, Crc32Checksum]]:
    """Returns the first usual form of a text whose CRC32 is each checksum, with each number of rows that fits.

    Several numbers fit if no side of the sample's books has more rows. The list is empty if no form fits.

    Args:
        compared: Pairs of the best rows of each side, and the checksum that was sent with them.
        sides: The values of the column `side`.
        columns: Columns whose values may be in the text.
    """
    fitting: list[tuple[int, Crc32Checksum]] = []
    for rows, crc32 in _list_usual_crc32_forms(sides, columns):
        if (not fitting or crc32 == fitting[0][1]) and all(
            crc32.matches_sent_checksum({group: found[:rows] for group, found in groups.items()}, sent)
            for groups, sent in compared
        ):
            fitting.append((rows, crc32))
    return fitting


def _list_fields_that_may_be_checksums(sample: SampledMessages) -> list[str]:
    """Returns paths of fields that may be checksums: numbers of 32 bits that neither repeat nor rise.

    Those with a usual name come first. The form of the checksum decides whether a field is one.
    """
    values: defaultdict[str, list[str]] = defaultdict(list)
    for one in sample.messages:
        for path, value in {**one.scalars, **_list_fields_by_index_from_end(one.value)}.items():
            if type(value) is int or isinstance(value, str):
                values[path].append(str(value))
    found = [path for path, texts in values.items() if len(texts) >= _FEWEST and _may_be_checksum_values(path, texts)]
    return sorted(found, key=lambda path: (not _is_named_as_checksum(path), -len(values[path])))[:_TRIED]


def _is_named_as_checksum(path: str) -> bool:
    return get_field_name(path).lower() in CHECKSUMS


def _may_be_checksum_values(path: str, texts: Sequence[str]) -> bool:
    """Returns True if the values at a path, as texts, can be checksums by their size, order and name."""
    is_number = all(len(text) <= len(str(-_MODULO)) and text.removeprefix("-").isdecimal() for text in texts)
    if not is_number or len({*texts}) <= len(texts) // 2:
        return False
    rises = sum(int(one) < int(two) for one, two in pairwise(texts)) / (len(texts) - 1)
    is_mixed = _FEWEST_RISES <= rises <= 1 - _FEWEST_RISES and max(map(int, texts)) > _MODULO // 8
    return _is_named_as_checksum(path) or is_mixed


def _list_fields_by_index_from_end(value: Any) -> dict[str, Any]:
    """Returns the fields of objects in a message that is an array, by paths such as `[-1].c`. Empty for others."""
    if not isinstance(value, list):
        return {}
    return {
        f"[{place - len(value)}].{name}": inner
        for place, item in enumerate(value)
        if isinstance(item, dict)
        for name, inner in item.items()
        if name.isidentifier()
    }


def _add_columns_with_sent_digits(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the settings with `keep`, and columns with the digits as they were sent; None if it is no order book."""
    found = deepcopy(dict(settings))
    if "uses" in found:
        return None
    columns, parts = found["columns"], [part for rule in found["messages"] for part in rule.get("rows", ())]
    bids, asks = _list_words_for_side(found["messages"], "bid"), _list_words_for_side(found["messages"], "ask")
    quantity = next((name for name in columns if OF_QUANTITY.search(name)), None)
    if found["key"][:1] != ["side"] or len(found["key"]) != len(("side", "price")) or quantity is None:
        return None
    names = (found["key"][1], quantity)
    are_complete = all(isinstance(part["row"], dict) and part["row"].keys() >= {*names} for part in parts)
    if (len(bids), len(asks)) != (1, 1) or not are_complete:
        return None
    for name in names:
        is_text = isinstance(columns[name], dict) and columns[name].get("from") == "text"
        columns[f"{name}_text"] = "string" if is_text else {"type": "string", "from": "digits"}
        for part in parts:
            part["row"][f"{name}_text"] = part["row"][name]
    messages = found.pop("messages")
    keep = {"per": ["side"], "best": found["key"][1], "descending": bids, "rows": _KEPT}
    return found | {"keep": keep, "messages": messages}


def _list_words_for_side(rules: Sequence[Mapping[str, Any]], side: str) -> list[str]:
    """Returns the words that rules write for a side, `bid` or `ask`."""
    words = {str(part["row"].get("side", ""))[1:] for rule in rules for part in rule.get("rows", ())
             if isinstance(part["row"], dict)}  # fmt: skip
    return sorted(word for word in words if SIDES.get(word.lower()) == side)


def _collect_best_rows_and_checksums(
    settings: dict[str, Any], records: Sequence[KafkaRecord]
) -> list[tuple[Groups, Any]]:
    """Returns the best rows of the table after each message with a checksum, and the checksum."""
    compared: list[tuple[Groups, Any]] = []

    def record_rows_and_checksum(groups: Groups, sent: Any) -> bool:
        if len(compared) < _COMPARED:
            compared.append(({group: [dict(row) for row in rows] for group, rows in groups.items()}, sent))
        return True

    feed = FeedSettings.model_validate(settings).build()
    if feed.check is None:
        return []
    feed = replace(feed, check=replace(feed.check, load=lambda: record_rows_and_checksum))
    trial = FeedTrial([feed], only_feed=feed)
    for record in records:
        trial.read_message(record)
        if len(compared) == _COMPARED:
            break
    return compared


def _list_usual_crc32_forms(sides: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, Crc32Checksum]]:
    """Yields usual forms of a text whose CRC32 is a checksum, each with the number of rows of a side in it."""
    for groups, is_mixed, between, digits_only, rows in product(
        (sides, sides[::-1]), (True, False), _SEPARATORS, (False, True), _ROWS
    ):
        yield rows, Crc32Checksum((*groups,), (*columns,), is_mixed, between, between, digits_only=digits_only)
    for groups, rows in product((sides, sides[::-1]), _ROWS):
        yield rows, Crc32Checksum((*groups,), (*columns,), between_values=":", between_rows=",", between_groups="|")


def _build_crc32_check_setting(path: str, rows: int, crc32: Crc32Checksum) -> dict[str, Any]:
    """Returns the value of the setting `check`, as YAML has it.

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
