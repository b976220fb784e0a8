"""What stands in `bronze.messages` where a message was erased: its place and Kafka timestamp, and nothing else.

So offsets stay without holes, and stream time is what it was. No session can have the key (it has a control character),
and a message that a producer sends with this key and without a value holds nothing that could be lost.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

KEY = b"\0erased"
"""The key of what stands for an erased message; its value and headers are null."""
CODE = -1
"""In a chunk's `reason`: the message is erased. It is no reason: nothing of it comes into quarantine."""


def is_erased(keys: Any, values: Any) -> Any:
    """Which messages are erased, by their keys and values: null never."""
    return pc.fill_null(pc.and_(pc.equal(keys, pa.scalar(KEY, pa.binary())), pc.is_null(values)), fill_value=False)
