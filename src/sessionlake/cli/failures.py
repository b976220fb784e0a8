"""What happens when a command fails or is interrupted: one text on standard error, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from sessionlake.cli.context import print_to_stderr
from sessionlake.errors import SessionlakeError
from sessionlake.local.signals import was_interrupt_recorded

DEBUG = "SESSIONLAKE_DEBUG"
INTERRUPTED = 130


def call_with_readable_errors(command: Callable[[], Any]) -> Any:
    """Calls a command and returns its result. If the command raises an error, only the error's text is printed.

    Ctrl-C while Python waits for Spark can end a command with any error, because py4j and pyspark do not pass
    `KeyboardInterrupt` on from everywhere. Then the output only says that the command was interrupted.

    Raises:
        Exit: The command failed or was interrupted. The exception has the exit code.
    """
    try:
        return command()
    except KeyboardInterrupt:
        print_to_stderr("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader of the answer, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if _is_usage_error(error):
            raise
        if was_interrupt_recorded():
            _print_traceback_if_wanted(error)
            print_to_stderr("interrupted")
            raise typer.Exit(INTERRUPTED) from error
        raise typer.Exit(_print_error(error)) from error


def _print_error(error: Exception) -> int:
    """Prints the text of an error, and returns the exit code for it."""
    from sessionlake.streaming.errors import convert_to_operator_error

    _print_traceback_if_wanted(error)
    readable = error if isinstance(error, SessionlakeError) else convert_to_operator_error(error)
    if readable is None:
        print_to_stderr(
            f"error: unexpected {type(error).__name__}: {_get_first_line_of_error(error)} ({DEBUG}=1 shows where)"
        )
        return SessionlakeError.exit_code
    print_to_stderr(f"error: {readable}")
    return readable.exit_code


def _print_traceback_if_wanted(error: Exception) -> None:
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)


def _is_usage_error(error: Exception) -> bool:
    return hasattr(error, "format_message")  # Typer prints its own errors, and exits with 2


def _get_first_line_of_error(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")[:400]
