"""Makes rows of `silver.sessions`: the last row of each session in `silver.session_progress`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.protocol.arrow import SESSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The columns of `session_progress` that `sessions` does not have.
_OWN = ("beneath", "_batch")


def select_newest_progress(progress: pa.Table) -> pa.Table:
    """Returns rows for `sessions`: of these rows of `session_progress`, the last one of each session. In memory."""
    ordered = progress.sort_by([("_batch", "descending")])
    index = pa.array(range(ordered.num_rows), pa.int64())
    newest = ordered.append_column("_index", index).group_by(list(SESSION)).aggregate([("_index", "min")])
    return ordered.take(newest["_index_min"]).drop_columns(list(_OWN))


def select_newest_progress_frame(progress: DataFrame) -> DataFrame:
    """Returns rows for `sessions`: of these rows of `session_progress`, the last one of each session. With Spark."""
    from pyspark.sql import functions as F

    fields = [name for name in progress.columns if name not in {*SESSION, *_OWN}]
    newest = progress.groupBy(*SESSION).agg(F.max_by(F.struct(*fields), "_batch").alias("newest"))
    return newest.select(*SESSION, "newest.*")
