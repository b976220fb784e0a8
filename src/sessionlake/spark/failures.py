"""Parses errors of Spark, Delta and Python workers into their exceptions, and recognises known failures.

Only the structured parts of an error are used: an exception's class, its error condition, the beginning of its message
and the chain of its causes. Words inside a message never decide. An exception in a Python worker appears as a
traceback within the JVM's text. Its lines may quote anything, so only the last one counts, which names the exception.
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
# Beginnings of messages of exceptions that only wrap another one. The wrapped exception's text follows.
_WRAPPERS = re.compile(
    r"Query \[id = [\w-]+, runId = [\w-]+\] terminated with exception:\s+"
    r"|Job aborted due to stage failure: Task \d+ in stage [\d.]+ failed \d+ times, most recent failure: "
    r"Lost task [\d.]+ in stage [\d.]+ \(TID \d+\) \([^)\n]*\):\s+"
    r"|Exception thrown in awaitResult:\s+"
)
_PYTHON = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?::\s(.*)|:?)$", re.DOTALL)
_SQLSTATE = re.compile(r"(\s*SQLSTATE: \w{5})+\s*$")
# Sentences with advice of Spark and Delta are dropped: some, such as deleting a checkpoint, would lose data here.
_ADVICE = ("Please ", "If ", "You can ", "This may happen ")
_SENTENCE = re.compile(r"(?<=[.;])\s+|\n\s*\n\s*")
_LONGEST = 400
_RUST_TRACE = "\n   0: "  # delta-rs appends its own stack trace after this
_SHADED = "kafkashaded."
"""Prefix of the names of Kafka's classes in Databricks' runtime."""


@dataclass(frozen=True)
class JvmException:
    """One exception in a chain of causes.

    Attributes:
        type: Name of the exception's class; empty if unknown.
        condition: Error condition of Spark or Delta; empty if there is none.
        text: Message without class and condition.
    """

    type: str
    condition: str
    text: str

    def __str__(self) -> str:
        message = " ".join(part for part in _SENTENCE.split(self.text) if not part.startswith(_ADVICE))
        condition = f"[{self.condition}] " if self.condition else ""
        return _shorten_to_one_line(f"{self.type}: {condition}{message}" if self.type else f"{condition}{message}")


@dataclass(frozen=True)
class PythonException:
    """An exception that Python code raised, in a worker or in a callback from the JVM.

    Attributes:
        type: The name of its class, with its module unless it is a built-in.
        text: Its message.
        places: Texts that say where it was raised, such as the message being read. `errors.note_place` adds them.
    """

    type: str
    text: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return _shorten_to_one_line(f"{self.type}: {self.text}" if self.text else self.type)


@dataclass(frozen=True)
class SparkFailure:
    """A parsed error of Spark, Delta or a Python worker.

    Attributes:
        jvm_exceptions: The JVM's exceptions, from the outermost to the root cause.
        python_exception: The Python exception that caused them; None if the cause is in the JVM.
    """

    jvm_exceptions: tuple[JvmException, ...] = ()
    python_exception: PythonException | None = None

    def __str__(self) -> str:
        if self.python_exception is not None:
            return str(self.python_exception)
        described = [one for one in self.jvm_exceptions if one.text or one.condition] or list(self.jvm_exceptions)
        return str(described[-1]) if described else "for a reason that Spark does not report"


@dataclass(frozen=True)
class KnownSparkFailure:
    """A failure whose meaning is known: how to recognise it, and the error that is raised in its place.

    Attributes:
        error_class: The class of the error that the operator sees.
        remedy: What the failure means and what to do.
        conditions: Error conditions of Spark and Delta. A condition without a sub-condition matches all its
            sub-conditions.
        types: Class names of JVM exceptions.
        message_starts: Beginnings of exception messages, for exceptions that Spark passes on without their class.
    """

    error_class: type[SessionlakeError]
    remedy: str
    conditions: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    message_starts: tuple[str, ...] = ()

    def matches_failure(self, failure: SparkFailure) -> bool:
        """Returns True if a JVM exception of the failure has the class, condition or message of this known one."""
        return failure.python_exception is None and any(
            self._matches_exception(exception) for exception in failure.jvm_exceptions
        )

    def _matches_exception(self, exception: JvmException) -> bool:
        """Returns True if the exception has the class, condition or message of this known failure."""
        parts = exception.condition.split(".")
        names = {".".join(parts[: n + 1]) for n in range(len(parts))}
        known = exception.type.removeprefix(_SHADED) in self.types or not names.isdisjoint(self.conditions)
        return known or (bool(self.message_starts) and exception.text.startswith(self.message_starts))


RESULT_TOO_BIG = KnownSparkFailure(
    LakeError,
    "the rows are larger than spark.driver.maxResultSize, the limit for what Spark collects in one process. "
    "Ask for fewer rows at once, or raise spark.driver.maxResultSize",
    message_starts=("Job aborted due to stage failure: Total size of serialized results of ",),
)


def parse_spark_failure(error: BaseException) -> SparkFailure:
    """Returns the JVM and Python exceptions that an error of Spark, Delta or a Python worker consists of."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if isinstance(error, PySparkException):
        found = parse_spark_failure_text(str(error))
        condition = error.getCondition() or ""
        known = (
            found.python_exception is not None
            or not condition
            or any(one.condition == condition for one in found.jvm_exceptions)
        )
        return found if known else SparkFailure((JvmException("", condition, ""), *found.jvm_exceptions))
    if isinstance(error, Py4JError):
        return parse_spark_failure_text(str(error))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    notes = [note for note in getattr(error, "__notes__", []) if isinstance(note, str)]
    text = str(error).partition(_RUST_TRACE)[0]
    return SparkFailure(python_exception=PythonException(name, text, _select_raised_at_notes(notes)))


def parse_spark_failure_text(text: str) -> SparkFailure:
    """Returns the JVM and Python exceptions that the text of an error of Spark or py4j names."""
    chain: list[JvmException] = []
    raised = None
    for part in _split_error_text(text):
        if not part.is_python:
            chain.extend(one for one in _parse_jvm_exceptions(part.text) if one != JvmException("", "", ""))
            continue
        found = _parse_python_exception(part.lines)
        if found is not None and found.type.startswith(("py4j.", "pyspark.errors.")):  # a callback wraps a JVM error
            inner = parse_spark_failure_text(found.text)
            chain.extend(inner.jvm_exceptions)
            found = inner.python_exception
        raised = found or raised
    return SparkFailure(tuple(chain), raised)


@dataclass
class _ErrorTextPart:
    """Lines of an error's text that belong together: one JVM exception or one Python traceback."""

    is_python: bool = False
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip()


def _split_error_text(text: str) -> Iterator[_ErrorTextPart]:
    """Divides an error's text into JVM exceptions and Python tracebacks, without stack frames and query plans."""
    part, hidden = _ErrorTextPart(), False
    for line in text.splitlines():
        frame = _FRAME.match(line) is not None and (not part.is_python or line.startswith("\t"))
        ended = frame or line in {_QUERY, _JVM_TRACE, _DRIVER_TRACE}
        if ended:
            hidden = line == _QUERY or (hidden and line != _JVM_TRACE)
            yield part
            part = _ErrorTextPart()
        elif hidden:  # Spark's description of the query: plans and offsets
            continue
        elif part.is_python:
            part.lines.append(line)
        else:
            content = line
            if line.startswith(_CAUSED_BY):
                yield part
                part, content = _ErrorTextPart(), line.removeprefix(_CAUSED_BY)
            elif line.startswith(": ") and part.text.startswith(_CALLING):
                part, content = _ErrorTextPart(), line.removeprefix(": ")
            part.lines.append(content.removesuffix(_TRACEBACK))
            if content.endswith(_TRACEBACK):
                yield part
                part = _ErrorTextPart(is_python=True)
    yield part


def _parse_jvm_exceptions(text: str) -> Iterator[JvmException]:
    """Yields the JVM exceptions that a text names at its start, from the outermost to the cause.

    The message of an exception may begin with the class and message of its cause.
    """
    while text:
        kind = _TYPE.match(text)
        text = text[kind.end() :] if kind else text
        condition = _CONDITION.match(text)
        text = text[condition.end() :] if condition else text
        wrapper = _WRAPPERS.match(text)
        text = text[wrapper.end() :] if wrapper else text
        more = wrapper or _TYPE.match(text)
        message = "" if more else _SQLSTATE.sub("", text).strip()
        yield JvmException(kind[1] if kind else "", condition[1] if condition else "", message)
        if not more:
            return


def _parse_python_exception(lines: Sequence[str]) -> PythonException | None:
    """Returns the exception that a traceback names in its last unindented line; None if there is none."""
    starts = [n + 1 for n, line in enumerate(lines) if line == _TRACEBACK]
    block = lines[starts[-1] if starts else 0 :]
    first = next((n for n, line in enumerate(block) if line and not line.startswith(" ")), None)
    if first is None:
        return None
    message = block[first:]
    text = "\n".join(line for line in message if not line.startswith(PLACE)).strip()
    named = _PYTHON.match(_SQLSTATE.sub("", text))
    places = _select_raised_at_notes(message)
    return (
        PythonException(named[1], (named[2] or "").strip(), places)
        if named
        else PythonException("Python", text, places)
    )


def _select_raised_at_notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Returns the notes, without their prefix, that say where an exception was raised."""
    return tuple(line.removeprefix(PLACE) for line in notes if line.startswith(PLACE))


def _shorten_to_one_line(text: str) -> str:
    """Returns the text in one line of at most 400 characters."""
    return " ".join(text.split())[:_LONGEST]


def summarize_spark_message(text: str) -> str:
    """Returns Spark's error message in one line.

    The SQL statement and the query plan that may follow it are left out.
    """
    message = re.split(r"\n\s*(?:== SQL|'|\+-|\n)|;\s*line \d+ pos \d+;?|JVM stacktrace:", text.strip(), maxsplit=1)[0]
    at = re.search(r"line (\d+),? pos (\d+)", text)
    return " ".join(message.split()) + (f" (line {at[1]}, position {at[2]})" if at and at[0] not in message else "")
