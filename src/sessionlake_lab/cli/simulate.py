"""Options of `sessionlake simulate`, generated from the fields and docstrings of the simulator's scenario."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from functools import wraps
from typing import Annotated, Any

import typer

from sessionlake_lab.simulate.scenario import FaultRates, MessageMix, Scenario

# Option names that are shorter than the field's name. `build_scenario` accepts them too.
_SHORT = {"duration_s": "duration", "sessions_per_sensor": "sessions", "reordered": "reorder", "day_s": "day"}
# Fields without an option: nested parts, and values from the configuration.
_LEFT_OUT = {"mix", "faults", "lateness_s", "future_skew_s", "max_message_bytes"}
_TYPES: dict[str, type] = {
    "int": int,
    "float": float,
    "float | None": float,
    "str": str,
    "str | None": str,
    "bool": bool,
}
_PANELS: tuple[tuple[type, str], ...] = (
    (Scenario, "Scenario"),
    (MessageMix, "Healthy messages"),
    (FaultRates, "Faults"),
)


def with_scenario_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces the `**options` of a command by one option for each field of a scenario. The default of each is None."""
    own = inspect.signature(command, eval_str=True)
    named = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]

    @wraps(command)
    def run_with_options(**given: Any) -> None:
        command(**given)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*named, *_list_scenario_parameters())]
    signature = own.replace(parameters=parameters)
    run_with_options.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it, types lack it
    run_with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return run_with_options


def set_rate_of_all_faults(rate: float | None, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options, with each fault that is None set to the rate."""
    if rate is None:
        return options
    names = [_SHORT.get(item.name, item.name) for item in fields(FaultRates)]
    return options | {name: rate for name in names if options.get(name) is None}


class ProgressLine:
    """A line on standard error that shows the number of sent messages, if standard error is a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, messages: int) -> None:
        """Shows how many messages were sent so far."""
        if self._shown:
            self._write_text(f"\r{messages:,} messages")

    def clear_line(self) -> None:
        """Removes the line of progress, so that other output begins at the start of a line."""
        if self._shown:
            self._write_text("\r\x1b[K")

    def _write_text(self, text: str) -> None:
        out = sys.__stderr__ or sys.stderr  # bypasses the stream that would escape the control characters
        out.write(text)
        out.flush()


def _list_scenario_parameters() -> Iterator[inspect.Parameter]:
    for owner, panel in _PANELS:
        described = _read_field_descriptions(owner)
        for item in fields(owner):
            if item.name in _LEFT_OUT:
                continue
            name = _SHORT.get(item.name, item.name)
            help_text = f"{described[item.name]} [{_describe_field_default(item)}]"
            option = typer.Option(f"--{name.replace('_', '-')}", help=help_text, rich_help_panel=panel)
            kind: Any = _TYPES[str(item.type)] | None
            annotation: Any = Annotated[kind, option]
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _describe_field_default(item: Field[Any]) -> str:
    if item.name == "start_ms":
        return "live: starts now, burst: ends now"
    return "as described" if item.default is None else str(item.default)


def _read_field_descriptions(owner: type) -> dict[str, str]:
    """Returns the description of each field from the class's docstring."""
    text = inspect.cleandoc(owner.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}
