"""Time from the start of `sessionlake query` to its answer, over the tables that `make demo` has left.

`.venv/bin/python tests/perf/bench_query.py [--home .sessionlake/demo] [--runs N]` prints the median and the longest of
the runs in seconds. The first run, which fills the cache of files, is not counted. `--spark` measures Spark as well.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

QUERIES = {
    "quarantine by reason": "SELECT reason, count(*) AS messages FROM silver.quarantine GROUP BY reason",
    "sessions": "SELECT * FROM silver.sessions",
    "gold.session_summary": "SELECT * FROM gold.session_summary ORDER BY lost DESC, quarantined DESC LIMIT 10",
    "gold.data_quality": "SELECT * FROM gold.data_quality ORDER BY hour DESC, topic",
}


def measure(words: list[str], home: Path, runs: int) -> list[float]:
    """Returns the seconds that each run of the command line took."""
    seconds = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "sessionlake", *words],
            env=os.environ | {"SESSIONLAKE_HOME": str(home)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def main() -> None:
    """Prints a line for each statement, and one for `--help`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".sessionlake/demo"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--spark", action="store_true")
    chosen = parser.parse_args()
    table = Table("statement", "engine", "median s", "longest s")
    lines = [("--help", "", ["--help"])]
    for engine in ["sail", "spark"] if chosen.spark else ["sail"]:
        lines += [(name, engine, ["query", "--engine", engine, sql]) for name, sql in QUERIES.items()]
    for name, engine, words in lines:
        seconds = measure(words, chosen.home, chosen.runs)
        table.add_row(name, engine, f"{statistics.median(seconds):.2f}", f"{max(seconds):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
