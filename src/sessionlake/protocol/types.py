"""Type aliases for arrays, rows and topic-partitions that all packages use."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
Int32s = npt.NDArray[np.int32]
Int8s = npt.NDArray[np.int8]
Float64s = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]

TopicPartition = tuple[str, int]
"""A Kafka topic and the number of one of its partitions."""

Row = dict[str, Any]
"""A table's row: values by column name."""

Payloads = list[tuple[str, bytes]]
"""The output of a fold: pairs of a kind, such as changes or events, and its encoded content."""
