"""The process that Spark forks its Python workers from: `python -m sessionlake.local.daemon pyspark.worker`.

Spark's own puts archives of pyspark on the module path, and every task reads their directories anew: about half of
the Python time of a small batch. And it imports pandas, Arrow and the folds in each worker, where once is enough. After
every task a worker collects garbage: what was imported is none, and is not looked at again.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

_SHARED = (
    "pandas",
    "pyarrow.compute",
    "sessionlake.gold.fold.shard",
    "sessionlake.silver.fold.shard",
    "sessionlake.silver.fold.pack",
)


def main() -> None:
    """Serves Spark until its end."""
    sys.path[:] = [place for place in sys.path if not place.endswith((".zip", ".jar"))]
    sys.path_importer_cache.clear()
    for name in _SHARED:
        import_module(name)
    daemon = import_module("pyspark.daemon")
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
