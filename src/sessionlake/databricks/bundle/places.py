"""Finds the file and line of a fault in a target, and joins faults that have one cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sessionlake.databricks.bundle.files import REFERENCE, BundleFiles, FileFault
from sessionlake.databricks.bundle.models import NOT_A_KEY
from sessionlake.settings.file import KeyPath

_SHOWN_USES = 3


@dataclass(frozen=True)
class LocatedFault:
    """A fault of a target, with the place in the files that causes it.

    Attributes:
        file: The file that has the wrong value.
        line: Its line, counted from 1.
        owner: Kind and key of the resource with the fault, such as `jobs.bronze`; empty if it is not in a resource.
        text: Description of the fault.
        uses: File and line of each reference that leads to the wrong value, such as `resources/bronze.job.yml:30`.
    """

    file: str
    line: int
    owner: str
    text: str
    uses: tuple[str, ...] = ()


def locate_fault(
    files: BundleFiles, target: str, key: KeyPath, text: str, owner: str = "", line: int = 0
) -> LocatedFault:
    """Returns a fault together with the file and line in which its value is written.

    Args:
        files: The bundle's files.
        target: Name of the target.
        key: Path of keys to the value in the target, as it is after all references were replaced.
        text: Description of the fault.
        owner: Kind and key of the resource with the fault.
        line: The line within a text of many lines, or 0.
    """
    *uses, definition = _list_keys_to_value(files, target, key, (), follows_last=NOT_A_KEY not in text)
    found = files.create_fault(text, *definition)
    places = [files.create_fault(text, *own) for own in uses]
    return LocatedFault(found.file, found.line + line, owner, text, tuple(f"{own.file}:{own.line}" for own in places))


def join_faults_at_same_line(faults: Iterable[LocatedFault]) -> Iterator[FileFault]:
    """Yields one fault for each wrong line and text. It names all resources that use the line."""
    groups: dict[tuple[str, int, str], list[LocatedFault]] = defaultdict(list)
    for fault in faults:
        groups[fault.file, fault.line, fault.text].append(fault)
    for (file, line, text), group in groups.items():
        owner, *others = dict.fromkeys(fault.owner for fault in group if fault.owner) or [""]
        # The place that most resources share is the nearest to the cause.
        uses = [use for use, _ in Counter(use for fault in group for use in dict.fromkeys(fault.uses)).most_common()]
        more = f" (also {', '.join(others)})" if others else ""
        end = "" if text.endswith("?") and not more else "."
        used = (
            f"{end} Used in {', '.join(uses[:_SHOWN_USES])}{', …' if len(uses) > _SHOWN_USES else ''}" if uses else ""
        )
        yield FileFault(file, line, (f"{owner}: " if owner else "") + text.removesuffix(".") + more + used)


def _list_keys_to_value(
    files: BundleFiles, target: str, key: KeyPath, followed_variables: tuple[str, ...], *, follows_last: bool
) -> list[KeyPath]:
    """Returns the keys of each reference that leads to a value, and last the key of the value itself.

    Args:
        files: The bundle's files.
        target: Name of the target.
        key: Path of keys to the value in the target, as it is after all references were replaced.
        followed_variables: The variables that were followed so far.
        follows_last: True to follow the variable that the last key itself has as its value; False to end at that key.
    """
    node: Any = files.merged_content
    for depth in range(len(key) + follows_last):
        if isinstance(node, str) and (found := REFERENCE.fullmatch(node)) and found[1].startswith("var."):
            variable = found[1].removeprefix("var.")
            is_own = variable in (files.targets[target].get("variables") or {})
            root = ("targets", target, "variables", variable) if is_own else ("variables", variable, "default")
            if variable in followed_variables:  # it refers to itself
                return [(*root, *key[depth:])]
            rest = _list_keys_to_value(
                files, target, (*root, *key[depth:]), (*followed_variables, variable), follows_last=follows_last
            )
            return [key[:depth], *rest]
        if depth == len(key):
            break
        try:
            node = node[key[depth]]
        except (LookupError, TypeError):
            break
    in_target: KeyPath = ("targets", target, *key)
    return [
        in_target if files.count_existing_key_levels(*in_target) - 2 > files.count_existing_key_levels(*key) else key
    ]
