"""The process from which Spark forks its Python workers: `python -m sessionlake.local.daemon pyspark.worker`.

It replaces `pyspark.daemon`, which is slower for three reasons:

- `pyspark.daemon` puts archives of pyspark on the module path, and every task reads their directories again. This
  takes about half of the Python time of a small batch.
- With `pyspark.daemon`, each worker imports pandas, Arrow and the folds. Here the parent process imports them once.
- With `pyspark.daemon`, a worker collects garbage after every task and scans all imported modules. Here the modules are
  frozen (`gc.freeze`) and not scanned.
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
    """Imports the modules that workers need, then forks workers for Spark until Spark ends."""
    sys.path[:] = [place for place in sys.path if not place.endswith((".zip", ".jar"))]
    sys.path_importer_cache.clear()
    for name in _SHARED:
        import_module(name)
    daemon = import_module("pyspark.daemon")
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
