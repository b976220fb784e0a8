"""Converts the settings `keep` and `check` of a feed, and checks that the groups and columns that they name exist."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any

from sessionlake.feeds.feed import ChecksumSetting, RowLimitPerGroup
from sessionlake.feeds.paths import PathConstant
from sessionlake.feeds.values import FeedColumn
from sessionlake.protocol.columns import INTEGER_BITS
from sessionlake.settings.feed_code import ChecksumFunctionLoader
from sessionlake.settings.feed_parts import ChecksumSettings, KeepSettings, RuleSettings
from sessionlake.settings.feed_rules import require_known_column


def build_keep(
    keep: KeepSettings | None, columns: Mapping[str, FeedColumn], rules: Sequence[RuleSettings]
) -> RowLimitPerGroup | None:
    """Returns the setting `keep` of a feed, which limits the rows of a table; None if it is not set.

    Args:
        keep: The setting.
        columns: The feed's columns by name.
        rules: The feed's rules.

    Raises:
        ValueError: A column or group that the setting names does not exist.
    """
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
        for number, value in _convert_group_value(text, per, rules, "keep.descending").items():
            descending[number].add(value)
    best = require_known_column(keep.best, columns, "keep.best").name
    return RowLimitPerGroup(tuple(column.name for column in per), best, tuple(map(frozenset, descending)), keep.rows)


def build_check(
    check: ChecksumSettings | None,
    keep: KeepSettings | None,
    columns: Mapping[str, FeedColumn],
    rules: Sequence[RuleSettings],
    feed: str,
) -> ChecksumSetting | None:
    """Returns the setting `check` of a feed, which compares a table with checksums; None without `check`.

    Args:
        check: The setting.
        keep: The setting `keep` of the feed, which orders the rows for a CRC32.
        columns: The feed's columns by name.
        rules: The feed's rules.
        feed: The feed's name.

    Raises:
        ValueError: A column or group does not exist, or cannot be part of a CRC32.
    """
    if check is None:
        return None
    if check.crc32 is None:
        named = ChecksumFunctionLoader(feed, check.with_ or "", str(FilePath.cwd()))
        return ChecksumSetting(check.checksum, check.rows, named)
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
    groups = tuple(_convert_group_value(text, per, rules, "check.crc32.groups")[0] for text in check.crc32.groups)
    for name in check.crc32.columns:
        column = require_known_column(name, columns, "check.crc32.columns")
        if column.sql != "string" and column.sql not in INTEGER_BITS:
            raise ValueError(
                f"check.crc32.columns: column {name!r} is of type {column.sql}, which does not keep the "
                "digits as they were sent, and the checksum needs them; declare one more column with the "
                f"digits, as in {name}_text: string, or {name}_text: {{type: string, from: digits}} if "
                "messages have JSON numbers"
            )
    return ChecksumSetting(check.checksum, min(check.rows, keep.rows), check.crc32.build(groups).get_checksum_function)


def _convert_group_value(
    text: str, per: Sequence[FeedColumn], rules: Sequence[RuleSettings], where: str
) -> dict[int, Any]:
    """Returns the value of a group in the types of the columns that form groups.

    The result has the value for each column whose type it fits, by the column's index in `per`.

    Args:
        text: The value as the configuration has it.
        per: The columns that form groups.
        rules: The feed's rules.
        where: The key of the value, for errors.

    Raises:
        ValueError: The value fits no column, or no row can have it, because rules write only other constants.
    """
    if not per:
        raise ValueError(
            f"{where}: {text!r} should name a group, but keep.per names no columns that form groups; "
            "name them in keep.per"
        )
    values: dict[int, Any] = {}
    for number, column in enumerate(per):
        with suppress(ValueError):
            values[number] = column.constant(text)
    if not values:
        types = ", ".join(f"{column.name} ({column.sql})" for column in per)
        raise ValueError(
            f"{where}: {text!r} cannot be a value of a column of keep.per, so no row would have it; "
            f"write a value of type {types}"
        )
    known = _list_group_constants([column.name for column in per], rules)
    if known is not None and not _is_written_by_rules(values, known, per):
        near = get_close_matches(text, known, 1, 0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        names = ", ".join(column.name for column in per)
        raise ValueError(f"{where}: no row can have {text!r} in {names}{hint} Rows have {', '.join(known)}")
    return values


def _is_written_by_rules(values: Mapping[int, Any], constants: Collection[str], per: Sequence[FeedColumn]) -> bool:
    """Returns True if a rule writes one of the values, compared in the column's type: `1.0` equals the decimal 1.00.

    Args:
        values: A value by the index of its column in `per`.
        constants: The texts that rules write into the columns.
        per: The columns that form groups.
    """
    for number, value in values.items():
        for text in constants:
            with suppress(ValueError):
                if per[number].constant(text) == value:
                    return True
    return False


def _list_group_constants(per: Sequence[str], rules: Sequence[RuleSettings]) -> list[str] | None:
    """Returns the constants that rules write into the columns `per`, sorted.

    Returns None if a rule takes such a value from a message, so that the groups are not known beforehand.
    """
    constants: set[str] = set()
    for part in (part for rule in rules for part in rule.rows):
        for name in per:
            path = part.row.get(name) if isinstance(part.row, dict) else None
            texts = [one.text for one in path.alternatives if isinstance(one, PathConstant)] if path else []
            if path is None or len(texts) != len(path.alternatives):
                return None
            constants |= {*texts}
    return sorted(constants) or None
