"""Converts `keep` and `check` of a feed, and checks that the groups and columns that they name exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any

from sessionlake.feeds.feed import Check, Keep
from sessionlake.feeds.paths import Constant
from sessionlake.feeds.values import FeedColumn
from sessionlake.protocol.columns import INTEGER_BITS
from sessionlake.settings.feed_code import NamedCheck
from sessionlake.settings.feed_parts import ChecksumSettings, KeepSettings, RuleSettings
from sessionlake.settings.feed_rules import require_known_column


def build_keep(
    keep: KeepSettings | None, columns: Mapping[str, FeedColumn], rules: Sequence[RuleSettings]
) -> Keep | None:
    """Converts the limit of a table. Raises ValueError if a column or group does not exist."""
    if keep is None:
        return None
    per = [require_known_column(name, columns, "keep.per") for name in keep.per]
    for column in per:
        if column.sql.startswith("array"):
            raise ValueError(
                f"keep.per: column {column.name!r} is of type {column.sql}, whose values form no groups; "
                "name a column of another type"
            )
    descending: list[set[Any]] = [set() for _ in per]
    for text in keep.descending:
        for number, value in _convert_group(text, per, rules, "keep.descending").items():
            descending[number].add(value)
    best = require_known_column(keep.best, columns, "keep.best").name
    return Keep(tuple(column.name for column in per), best, tuple(map(frozenset, descending)), keep.rows)


def build_check(
    check: ChecksumSettings | None,
    keep: KeepSettings | None,
    columns: Mapping[str, FeedColumn],
    rules: Sequence[RuleSettings],
    feed: str,
) -> Check | None:
    """Converts the check of a table.

    Args:
        check: The settings of the check; None if there is none.
        keep: The limit of the table, which orders the rows for a CRC32.
        columns: The feed's columns by name.
        rules: The feed's rules.
        feed: The feed's name.

    Raises:
        ValueError: A column or group does not exist, or cannot be part of a CRC32.
    """
    if check is None:
        return None
    if check.crc32 is None:
        named = NamedCheck(feed, check.with_ or "", str(FilePath.cwd()))
        return Check(check.checksum, check.rows, named)
    if keep is None or len(keep.per) != 1:
        raise ValueError(
            "check.crc32: a checksum covers the best rows of each group, so the feed needs `keep` "
            "with one column in `per`, as in keep: "
            "{per: [side], best: price, descending: [bid], rows: 1000}"
        )
    per = [require_known_column(keep.per[0], columns, "keep.per")]
    if check.rows > keep.rows and "rows" in check.model_fields_set:
        raise ValueError(
            f"check.rows is {check.rows}, but the table keeps at most keep.rows = {keep.rows} rows of "
            "a group, so a checksum of more rows never fits; raise keep.rows, or lower check.rows"
        )
    groups = tuple(_convert_group(text, per, rules, "check.crc32.groups")[0] for text in check.crc32.groups)
    for name in check.crc32.columns:
        column = require_known_column(name, columns, "check.crc32.columns")
        if column.sql != "string" and column.sql not in INTEGER_BITS:
            raise ValueError(
                f"check.crc32.columns: column {name!r} is of type {column.sql}, which does not keep the "
                "digits as they were sent, and the checksum needs them; declare one more column with the "
                f"digits, as in {name}_text: string, or {name}_text: {{type: string, from: digits}} if "
                "messages have JSON numbers"
            )
    return Check(check.checksum, min(check.rows, keep.rows), check.crc32.build(groups).load)


def _convert_group(text: str, per: Sequence[FeedColumn], rules: Sequence[RuleSettings], where: str) -> dict[int, Any]:
    """Converts the value of a group to the types of the columns that form groups.

    Args:
        text: The value as the configuration has it.
        per: The columns that form groups.
        rules: The feed's rules.
        where: The key of the value, for errors.

    Returns:
        The value by the number of the column in `per`, for each column whose type it fits.

    Raises:
        ValueError: The value fits no column, or no row can be in the group, because rows have only other constants.
    """
    if not per:
        raise ValueError(
            f"{where}: {text!r} should name a group, but keep.per names no columns that form groups; "
            "name them in keep.per"
        )
    found: dict[int, Any] = {}
    for number, column in enumerate(per):
        with suppress(ValueError):
            found[number] = column.constant(text)
    if not found:
        types = ", ".join(f"{column.name} ({column.sql})" for column in per)
        raise ValueError(
            f"{where}: {text!r} cannot be a value of a column of keep.per, so no row would have it; "
            f"write a value of type {types}"
        )
    known = _list_groups([column.name for column in per], rules)
    if known is not None and not _is_constant(found, known, per):
        near = get_close_matches(text, known, 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        names = ", ".join(column.name for column in per)
        raise ValueError(f"{where}: no row can have {text!r} in {names}{hint} Rows have {', '.join(known)}")
    return found


def _is_constant(found: Mapping[int, Any], known: Collection[str], per: Sequence[FeedColumn]) -> bool:
    """Returns True if rules write one of the values, whose text may be another: `1.0` is the decimal 1.00."""
    for number, value in found.items():
        for text in known:
            with suppress(ValueError):
                if per[number].constant(text) == value:
                    return True
    return False


def _list_groups(per: Sequence[str], rules: Sequence[RuleSettings]) -> list[str] | None:
    """Returns the constants that rules write into the columns `per`; None if a row takes its value from a message."""
    found: set[str] = set()
    for part in (part for rule in rules for part in rule.rows):
        for name in per:
            path = part.row.get(name) if isinstance(part.row, dict) else None
            texts = [one.text for one in path.alternatives if isinstance(one, Constant)] if path else []
            if path is None or len(texts) != len(path.alternatives):
                return None
            found |= {*texts}
    return sorted(found) or None
