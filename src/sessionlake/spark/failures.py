"""What Spark says when something fails, read from the parts of an error that have a form, never from words in it.

Those parts are an exception's class, its error condition, how its own message begins, and the chain of its causes.
What a Python worker raised stands in the middle of a JVM's text as a traceback: it may quote anything, so that no line
of it counts but the last, which says what was raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sessionlake.errors import PLACE, LakeError, SessionlakeError

_TRACEBACK = "Traceback (most recent call last):"
_CAUSED_BY = "Caused by: "
_CALLING = "An error occurred while calling "  # py4j's own first line
_JVM_TRACE = "JVM stacktrace:"
_DRIVER_TRACE = "Driver stacktrace:"
_QUERY = "=== Streaming Query ==="
_FRAME = re.compile(r"\s+(at [\w.$/]+\(|at [\w.$/<>]+\(|\.\.\. \d+ more)")
_TYPE = re.compile(r"((?:[a-z_][\w$]*\.)+[A-Z][\w$]*)(?::\s+|\s*$)")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z][A-Z0-9_]*)*)\]\s*")
# How exceptions that only pass on another begin; the other's own text follows.
_WRAPPERS = re.compile(
    r"Query \[id = [\w-]+, runId = [\w-]+\] terminated with exception:\s+"
    r"|Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ times, most recent failure: "
    r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^)\n]*\):\s+"
    r"|Exception thrown in awaitResult:\s+"
)
_PYTHON = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?::\s(.*)|:?)$", re.DOTALL)
_SQLSTATE = re.compile(r"(\s*SQLSTATE: \w{5})+\s*$")
# What Spark and Delta advise, such as to delete a checkpoint, loses data here.
_ADVICE = ("Please ", "If ", "You can ", "This may happen ")
_SENTENCE = re.compile(r"(?<=[.;])\s+|\n\s*\n\s*")
_LONGEST = 400
_RUST_TRACE = "\n   0: "  # how delta-rs goes on: where in it that was
_SHADED = "kafkashaded."
"""How the name of a class begins that Databricks' runtime has of Kafka's."""


@dataclass(frozen=True)
class JvmException:
    """One exception of a chain of causes.

    Attributes:
        type: the exception's class; empty if it is not said.
        condition: Spark's or Delta's name of the failure; empty if it has none.
        text: its message, without those two.
    """

    type: str
    condition: str
    text: str

    def __str__(self) -> str:
        said = " ".join(part for part in _SENTENCE.split(self.text) if not part.startswith(_ADVICE))
        named = f"[{self.condition}] " if self.condition else ""
        return _in_one_line(f"{self.type}: {named}{said}" if self.type else f"{named}{said}")


@dataclass(frozen=True)
class Raised:
    """What Python code raised, in a worker or beyond a callback.

    Attributes:
        type: its class, with its module if that is not the built-in one.
        text: its message.
        places: where it was, as noted by `note_place`.
    """

    type: str
    text: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return _in_one_line(f"{self.type}: {self.text}" if self.text else self.type)


@dataclass(frozen=True)
class SparkFailure:
    """An error of Spark's, Delta's or a worker's, taken apart into exceptions.

    Attributes:
        chain: the JVM's exceptions, from the outermost to the first cause.
        raised: what began it, if that was Python code.
    """

    chain: tuple[JvmException, ...] = ()
    raised: Raised | None = None

    def __str__(self) -> str:
        if self.raised is not None:
            return str(self.raised)
        told = [said for said in self.chain if said.text or said.condition] or list(self.chain)
        return str(told[-1]) if told else "for a reason that Spark does not tell"


@dataclass(frozen=True)
class KnownFailure:
    """A failure that has an explanation: by what it is known, and what the operator is told instead.

    Attributes:
        error: what it becomes.
        remedy: what it means and what to do.
        conditions: Spark's and Delta's error conditions; one without a sub-condition stands for all of its.
        types: classes of exceptions in the chain.
        beginnings: how the message of an exception begins, where Spark passes it on without its class.
    """

    error: type[SessionlakeError]
    remedy: str
    conditions: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    beginnings: tuple[str, ...] = ()

    def fits(self, failure: SparkFailure) -> bool:
        """Whether it is the cause of a failure."""
        return failure.raised is None and any(self._is(said) for said in failure.chain)

    def _is(self, said: JvmException) -> bool:
        parts = said.condition.split(".")
        names = {".".join(parts[: n + 1]) for n in range(len(parts))}
        known = said.type.removeprefix(_SHADED) in self.types or not names.isdisjoint(self.conditions)
        return known or (bool(self.beginnings) and said.text.startswith(self.beginnings))


RESULT_TOO_BIG = KnownFailure(
    LakeError,
    "the rows are more than spark.driver.maxResultSize lets through to the driver",
    beginnings=("Job aborted due to stage failure: Total size of serialized results of ",),
)


def failure_of(error: BaseException) -> SparkFailure:
    """An error of Spark's, Delta's or a worker's, taken apart into exceptions."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        found = parse(str(error))
        condition = error.getCondition() or ""
        known = found.raised is not None or not condition or any(said.condition == condition for said in found.chain)
        return found if known else SparkFailure((JvmException("", condition, ""), *found.chain))
    if isinstance(error, Py4JError):
        return parse(str(error))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    notes = [note for note in getattr(error, "__notes__", []) if isinstance(note, str)]
    text = str(error).partition(_RUST_TRACE)[0]
    return SparkFailure(raised=Raised(name, text, _places(notes)))


def parse(text: str) -> SparkFailure:
    """The text of an error of Spark's or py4j's, taken apart."""
    chain: list[JvmException] = []
    raised = None
    for part in _parts(text):
        if not part.python:
            chain.extend(said for said in _heads(part.text) if said != JvmException("", "", ""))
            continue
        found = _last_line(part.lines)
        if found is not None and found.type.startswith(("py4j.", "pyspark.errors.")):  # passed on by a callback
            inner = parse(found.text)
            chain.extend(inner.chain)
            found = inner.raised
        raised = found or raised
    return SparkFailure(tuple(chain), raised)


@dataclass
class _Part:
    """Lines of the text that belong together: one JVM exception's, or a traceback's of Python."""

    python: bool = False
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip()


def _parts(text: str) -> Iterator[_Part]:
    part, hidden = _Part(), False
    for line in text.splitlines():
        frame = _FRAME.match(line) is not None and (not part.python or line.startswith("\t"))
        ended = frame or line in {_QUERY, _JVM_TRACE, _DRIVER_TRACE}
        if ended:
            hidden = line == _QUERY or (hidden and line != _JVM_TRACE)
            yield part
            part = _Part()
        elif hidden:  # what Spark says of the query: plans and offsets
            continue
        elif part.python:
            part.lines.append(line)
        else:
            own = line
            if line.startswith(_CAUSED_BY):
                yield part
                part, own = _Part(), line.removeprefix(_CAUSED_BY)
            elif line.startswith(": ") and part.text.startswith(_CALLING):
                part, own = _Part(), line.removeprefix(": ")
            part.lines.append(own.removesuffix(_TRACEBACK))
            if own.endswith(_TRACEBACK):
                yield part
                part = _Part(python=True)
    yield part


def _heads(text: str) -> Iterator[JvmException]:
    """The exceptions that a message begins with: an exception's own text may be that of its cause."""
    while text:
        kind = _TYPE.match(text)
        text = text[kind.end() :] if kind else text
        condition = _CONDITION.match(text)
        text = text[condition.end() :] if condition else text
        wrapper = _WRAPPERS.match(text)
        text = text[wrapper.end() :] if wrapper else text
        more = wrapper or _TYPE.match(text)
        own = "" if more else _SQLSTATE.sub("", text).strip()
        yield JvmException(kind[1] if kind else "", condition[1] if condition else "", own)
        if not more:
            return


def _last_line(lines: Sequence[str]) -> Raised | None:
    """What a traceback says was raised: its last line without an indent, and the lines of the message after it."""
    starts = [n + 1 for n, line in enumerate(lines) if line == _TRACEBACK]
    block = lines[starts[-1] if starts else 0 :]
    first = next((n for n, line in enumerate(block) if line and not line.startswith(" ")), None)
    if first is None:
        return None
    said = block[first:]
    text = "\n".join(line for line in said if not line.startswith(PLACE)).strip()
    named = _PYTHON.match(_SQLSTATE.sub("", text))
    return Raised(named[1], (named[2] or "").strip(), _places(said)) if named else Raised("Python", text, _places(said))


def _places(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(line.removeprefix(PLACE) for line in lines if line.startswith(PLACE))


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]


def one_line(text: str) -> str:
    """What Spark says, without the picture of the statement and the plan below it."""
    said = re.split(r"\n\s*(?:== SQL|'|\+-|\n)|;\s*line \d+ pos \d+;?|JVM stacktrace:", text.strip(), maxsplit=1)[0]
    at = re.search(r"line (\d+),? pos (\d+)", text)
    return " ".join(said.split()) + (f" (line {at[1]}, position {at[2]})" if at and at[0] not in said else "")
