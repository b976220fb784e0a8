"""Commands for trying and testing, which need the lab: `simulate` and `demo`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from sessionlake.cli.context import Config, Form, settings_of
from sessionlake.cli.show import OutputFormat
from sessionlake_lab.cli.simulate import every_fault, with_scenario_options

app = typer.Typer(rich_markup_mode=None)


class Mode(StrEnum):
    """How `simulate` keeps time."""

    LIVE = "live"
    BURST = "burst"
    BENCH = "bench"


@app.command()
@with_scenario_options
def simulate(
    mode: Annotated[Mode, typer.Option("--mode", help="live keeps to the clock; burst and bench do not.")] = Mode.LIVE,
    messages: Annotated[int | None, typer.Option("--messages", help="How many in all, instead of a duration.")] = None,
    every: Annotated[float | None, typer.Option("--faults", help="Share of every fault not given by itself.")] = None,
    truth: Annotated[Path | None, typer.Option("--truth", help="Folder for what silver must then hold.")] = None,
    form: Form = OutputFormat.JSON,
    config: Config = None,
    **scenario: Any,
) -> None:
    """Send plausible captures to Kafka, the same from the same seed, with faults on request."""
    settings = settings_of(config)
    from sessionlake.cli.show import show
    from sessionlake.local.signals import StopFlag
    from sessionlake_lab.cli.simulate import ProgressLine
    from sessionlake_lab.simulate.run import run_simulation

    told = every_fault(every, scenario | {"messages": messages})
    line = ProgressLine()
    with StopFlag() as stop:
        report = run_simulation(settings, mode=mode.value, truth=truth, stop=stop, on_progress=line, **told)
    line.end()
    found = report.to_dict()
    show(list(found), [list(found.values())], form)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option("--seconds", min=5, max=3600, help="How long the sensors send.")] = 45,
    rate: Annotated[float, typer.Option("--rate", min=10, max=20_000, help="Messages a second.")] = 1000,
    config: Config = None,
) -> None:
    """The whole pipeline on live Kafka input for a minute, in a home of its own, then verified."""
    settings = settings_of(config)
    from sessionlake_lab.cli.demo import run_demo

    code = run_demo(settings, seconds=seconds, rate=rate)
    if code:
        raise typer.Exit(code)
