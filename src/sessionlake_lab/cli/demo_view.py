"""The demo's live display: messages, rate and backlog of each table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from sessionlake.delta.schemas.names import BRONZE, CHANGES, MESSAGES, ROWS, SILVER, SILVER_TABLES
from sessionlake.ledger.entries import LedgerEntry

# Long enough for a steady figure, short enough to see a layer stop.
_RATE_SECONDS = 5.0


class DemoProgress:
    """Collects counts from the simulator, the layers' commits and gold's stream, and draws them as a table."""

    def __init__(self) -> None:
        self.phase = "starting Kafka and Spark"
        self._begun = time.monotonic()
        self._sent = 0
        self._read: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._gold: dict[int, int] = {}
        self._history: list[tuple[float, dict[str, int]]] = []

    def record_sent_messages(self, messages: int) -> None:
        """Records how many messages the sensors have sent so far."""
        self._sent = messages

    def record_batch(self, entry: LedgerEntry) -> None:
        """Records a committed batch of bronze, silver or the table merger."""
        self._read[entry.layer] += entry.messages
        for output in entry.outputs:
            self._written[output.table] += output.rows

    def record_gold_batch(self, batch: int, changes: int) -> None:
        """Records how many session changes gold's latest batch has read."""
        self._gold[batch] = max(changes, self._gold.get(batch, 0))

    @contextmanager
    def draw_progress_during_block(self, console: Console) -> Iterator[None]:
        """Draws the counts during the block on a terminal. Elsewhere it only prints the phase."""
        if not console.is_terminal:
            console.print(f"{self.phase} …")
            yield
            return
        with Live(get_renderable=self._draw_progress_table, console=console, refresh_per_second=4, transient=True):
            yield

    def _draw_progress_table(self) -> Table:
        counts = self._copy_message_counts()
        rates = self._compute_rates(counts)
        table = Table(title=f"{self.phase}, {time.monotonic() - self._begun:.0f} s", title_justify="left")
        for name in ("table", "read", "per second", "behind", "rows written"):
            table.add_column(name, justify="left" if name == "table" else "right")
        table.add_row("Kafka (sensors)", f"{self._sent:,}", f"{rates['sent']:,.0f}", "", "")
        before = self._sent
        for layer, name in ((BRONZE, MESSAGES), (SILVER, CHANGES), (SILVER_TABLES, ROWS)):
            read, rows = counts[layer], self._written[name]
            table.add_row(name, f"{read:,}", f"{rates[layer]:,.0f}", f"{max(before - read, 0):,}", f"{rows:,}")
            before = read
        behind = max(self._written[CHANGES] - counts["gold"], 0)
        table.add_row("gold.* (changes)", f"{counts['gold']:,}", f"{rates['gold']:,.0f}", f"{behind:,}", "")
        return table

    def _copy_message_counts(self) -> dict[str, int]:
        layers = {layer: self._read[layer] for layer in (BRONZE, SILVER, SILVER_TABLES)}
        return {"sent": self._sent, "gold": sum(self._gold.copy().values()), **layers}

    def _compute_rates(self, counts: dict[str, int]) -> dict[str, float]:
        now = time.monotonic()
        self._history.append((now, counts))
        while self._history[0][0] < now - _RATE_SECONDS:
            self._history.pop(0)
        since, earlier = self._history[0]
        return {name: (count - earlier[name]) / max(now - since, 0.25) for name, count in counts.items()}
