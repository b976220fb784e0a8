"""The simulator's options, taken from the simulator: what a scenario can say, the command line can."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import Field, fields
from functools import wraps
from typing import Annotated, Any

import typer

from sessionlake_lab.simulate.scenario import Faults, Mix, Scenario

# Shorter words for some fields, as `build_scenario` takes them.
_SHORT = {"duration_s": "duration", "sessions_per_sensor": "sessions", "reordered": "reorder", "day_s": "day"}
# Not options: the parts, and what the configuration decides.
_LEFT_OUT = {"mix", "faults", "lateness_s", "future_skew_s", "max_message_bytes"}
_TYPES: dict[str, type] = {"int": int, "float": float, "float | None": float, "str": str, "bool": bool}
_PANELS: tuple[tuple[type, str], ...] = ((Scenario, "Scenario"), (Mix, "What healthy sessions say"), (Faults, "Faults"))


def with_scenario_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command with `**options` an option for every field of a scenario; those not given are None."""
    own = inspect.signature(command, eval_str=True)
    kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]

    @wraps(command)
    def wrapped(**given: Any) -> None:
        command(**given)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*kept, *_parameters())]
    wrapped.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect reads it, types lack it
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def every_fault(rate: float | None, options: dict[str, Any]) -> dict[str, Any]:
    """The options with every fault that they leave open at the same rate."""
    if rate is None:
        return options
    names = [_SHORT.get(item.name, item.name) for item in fields(Faults)]
    return options | {name: rate for name in names if options.get(name) is None}


class ProgressLine:
    """One line on standard error that counts, where somebody is there to see it."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, messages: int) -> None:
        """Says how many messages were handed over."""
        if self._shown:
            self._write(f"\r{messages:,} messages")

    def end(self) -> None:
        """Clears the line."""
        if self._shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        out = sys.__stderr__ or sys.stderr  # the terminal itself: what else is said shows control characters
        out.write(text)
        out.flush()


def _parameters() -> Iterator[inspect.Parameter]:
    for owner, panel in _PANELS:
        described = _descriptions(owner)
        for item in fields(owner):
            if item.name in _LEFT_OUT:
                continue
            name = _SHORT.get(item.name, item.name)
            help_text = f"{described[item.name]} [{_default(item)}]"
            option = typer.Option(f"--{name.replace('_', '-')}", help=help_text, rich_help_panel=panel)
            kind: Any = _TYPES[str(item.type)] | None
            annotation: Any = Annotated[kind, option]
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _default(item: Field[Any]) -> str:
    if item.name == "start_ms":
        return "so that live begins now, and burst ends now"
    return "as described" if item.default is None else str(item.default)


def _descriptions(owner: type) -> dict[str, str]:
    """Field name to its text in the class's docstring."""
    text = inspect.cleandoc(owner.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}
