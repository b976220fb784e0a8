"""The placeholder in `bronze.messages` for an erased message: it keeps only the offset and the Kafka timestamp.

So offsets stay without gaps, and stream time does not change. No session can have the placeholder's key, because it has
a control character. If a producer sends a message with this key and no value, nothing is lost by ignoring it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

ERASED_KEY = b"\0erased"
"""The key of a placeholder. Its value and headers are null."""
ERASED_CODE = -1
"""Code of an erased message in a chunk's column `reason`. Such a message does not go to quarantine."""


def find_erased_messages(keys: Any, values: Any) -> Any:
    """Returns a boolean for each message: true if its key and value are those of an erased message's placeholder.

    Args:
        keys: The keys, as an Arrow array.
        values: The values, as an Arrow array.
    """
    return pc.fill_null(
        pc.and_(pc.equal(keys, pa.scalar(ERASED_KEY, pa.binary())), pc.is_null(values)), fill_value=False
    )
