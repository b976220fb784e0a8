"""Commands of the lab, for trials and tests: `simulate` and `demo`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sessionlake.cli.context import Config, Form, load_config
from sessionlake.cli.show import OutputFormat
from sessionlake_lab.cli.simulate import set_rate_of_all_faults, with_scenario_options
from sessionlake_lab.simulate.scenario import MAX_INT32

app = typer.Typer(rich_markup_mode=None)


class TimestampMode(StrEnum):
    """How the timestamps that `simulate` writes relate to the present time."""

    LIVE = "live"
    BURST = "burst"
    BENCH = "bench"


@app.command()
@with_scenario_options
def simulate(
    mode: Annotated[
        TimestampMode, typer.Option("--mode", help="live sends in real time; burst and bench do not.")
    ] = TimestampMode.LIVE,
    messages: Annotated[int | None, typer.Option("--messages", help="Total number, instead of a duration.")] = None,
    every: Annotated[float | None, typer.Option("--faults", help="Share of each fault without its own option.")] = None,
    truth: Annotated[Path | None, typer.Option("--truth", help="Folder for the expected silver tables.")] = None,
    form: Form = OutputFormat.JSON,
    config: Config = None,
    **scenario: Any,
) -> None:
    """Send simulated captures to Kafka, with optional faults; the same seed gives the same messages."""
    settings = load_config(config)
    from sessionlake.cli.show import show_rows
    from sessionlake.local.signals import StopFlag
    from sessionlake_lab.cli.simulate import ProgressLine
    from sessionlake_lab.simulate.run import run_simulation

    options = set_rate_of_all_faults(every, scenario | {"messages": messages})
    line = ProgressLine()
    with StopFlag() as stop:
        report = run_simulation(settings, mode=mode.value, truth=truth, stop=stop, on_progress=line, **options)
    line.clear_line()
    found = report.to_dict()
    show_rows(list(found), [list(found.values())], form)


@app.command()
def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=5, max=3600, help="Seconds for which the sensors send.")
    ] = 45,
    rate: Annotated[float, typer.Option("--rate", min=10, max=20_000, help="Messages a second.")] = 1000,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, max=MAX_INT32, help="Seed of all messages and faults: the same seed, the same tables."
        ),
    ] = 0,
    config: Config = None,
) -> None:
    """Run the whole pipeline on live Kafka input for a minute, in a separate home, then verify it."""
    settings = load_config(config)
    from sessionlake_lab.cli.demo import run_demo

    code = run_demo(settings, seconds=seconds, rate=rate, seed=seed)
    if code:
        raise typer.Exit(code)
