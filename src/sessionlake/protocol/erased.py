"""The placeholder in `bronze.messages` for an erased message: it keeps only the offset and the Kafka timestamp.

So offsets stay without gaps, and stream time does not change. No session can have the placeholder's key, because it has
a control character. If a producer sends a message with this key and no value, nothing is lost by ignoring it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

KEY = b"\0erased"
"""The key of a placeholder. Its value and headers are null."""
CODE = -1
"""Code of an erased message in a chunk's `reason`. Unlike a reason, it puts nothing into quarantine."""


def is_erased(keys: Any, values: Any) -> Any:
    """Returns which messages are erased, by their keys and values. The result has no nulls."""
    return pc.fill_null(pc.and_(pc.equal(keys, pa.scalar(KEY, pa.binary())), pc.is_null(values)), fill_value=False)
