"""What a Delta log says about one version of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TableDescription:
    """What a Delta log says about one version of a table.

    Attributes:
        features: Names of all features that the table's protocol lists or implies.
        fields: The columns as Delta describes them: `name`, `type`, `nullable` and `metadata`.
        has_partitions: True if the table has partition columns.
    """

    features: frozenset[str]
    fields: Sequence[Mapping[str, Any]]
    has_partitions: bool
