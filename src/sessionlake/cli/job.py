"""What a run of a Databricks job may do: a closed list of commands and options.

Whoever may start a job may give its run other words than the job has, and the run acts as the principal that owns the
tables. So the entry point of all jobs, `sessionlake-job`, takes what is listed here and nothing else: no SQL, no file
that was not deployed with the bundle, no configuration of one's own. Who wants to read tables does so as himself, on a
warehouse or in a notebook.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import typer

from sessionlake.errors import UsageError
from sessionlake.settings.model import CONFIG_VARIABLE, PUBLICATIONS_VARIABLE

PROGRAM = "sessionlake"
ALLOWED: dict[str, frozenset[str]] = {
    command: frozenset(parameters.split())
    for command, parameters in {
        "run": "layers name once",
        "publish": "table topic once",
        "maintain": "once table form purge_vectors",
        "bronze skip": "topic partition offset why to",
        "doctor": "form",
        "status": "form",
        "resolve": "session accept_gap isolate skip_message withdraw topic partition offset why",
        "forget": "session topic resume cancel wait shorten_gold",
        "reshard": "shards cancel wait",
        "recover": "lost shorten_gold",
        "verify bronze": "",
        "verify silver": "",
        "verify gold": "",
        "rebuild silver": "from_bronze_version topic sessions cancel start_over",
        "rebuild gold": "shorten_gold",
        "rebuild gold.*": "shorten_gold",
        "rebuild processor:*": "cancel start_over",
        "state stats": "form",
        "rules check": "file",
        "rules apply": "file only",
        "rules list": "form",
        "reference load": "name file",
        "reference list": "form",
        "types": "",
    }.items()
}
"""Commands, and the parameters that may be given with each, by the names of the functions that take them."""


def refusal(command: Any, words: Sequence[str], environ: Mapping[str, str] | None = None) -> str | None:
    """Why a run of a job may not do what the words say; None if it may.

    Args:
        command: the whole command line.
        environ: of the run, which names the files and the publications of its deployment; without it, these are not
            checked.
    """
    try:
        name, context = _parsed(command, words)
    except UsageError as error:
        return str(error)
    except typer.Exit:  # asked for help, or the version
        return None
    known = next((listed for listed in (name, _of_any_name(name)) if listed in ALLOWED), None)
    if known is None:
        return (
            f"a job does not run `{name}`, since its run acts as the principal that owns the tables. It runs "
            f"{', '.join(ALLOWED)}. To read tables, use your own rights: a SQL warehouse, a notebook, or "
            "`sessionlake remote query`"
        )
    given = {parameter.name for parameter in context.command.params if _is_given(context, parameter.name)}
    if others := sorted(given - ALLOWED[known]):
        takes = ", ".join(sorted(ALLOWED[known])) or "nothing"
        return f"in a job, `{name}` takes {takes}, and not {', '.join(others)}"
    return None if environ is None else _not_deployed(name, context.params, environ)


def _not_deployed(name: str, given: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """Why the deployment has not what the words name: a file, or a publication; None if it has."""
    file = given.get("file")
    folder = Path(environ[CONFIG_VARIABLE]).resolve().parent if CONFIG_VARIABLE in environ else Path.cwd()
    if file is not None and not Path(file).resolve().is_relative_to(folder):
        return f"{file} is not deployed with the bundle: put it beside the settings file, into {folder}, and deploy"
    if name != "publish":
        return None
    wanted = f"{given['table']}={given['topic']}"
    listed = [one.strip() for one in environ.get(PUBLICATIONS_VARIABLE, "").split(",") if one.strip()]
    if wanted in listed:
        return None
    return (
        f"this deployment publishes {', '.join(listed) or 'nothing'}, and not {wanted}: "
        f"name it in {PUBLICATIONS_VARIABLE} in databricks.yml, and deploy"
    )


def _parsed(command: Any, words: Sequence[str]) -> tuple[str, Any]:
    """The command that the words name, as in `rebuild silver`, and the context with what they give to it.

    Raises:
        UsageError: the command line does not take these words.
    """
    try:
        with redirect_stdout(io.StringIO()):  # help is shown when the words are run
            return _walked(command, words)
    except Exception as error:
        if hasattr(error, "format_message"):  # Typer's own, of a wrong use
            raise UsageError(str(error.format_message())) from None
        raise


def _walked(command: Any, words: Sequence[str]) -> tuple[str, Any]:
    path: list[str] = []
    context, name, rest = None, PROGRAM, list(words)
    while True:
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "resolve_command"):
            return " ".join(path), context
        # No command of the list has options before its name.
        path += [f"--{parameter.name}" for parameter in command.params if _is_given(context, parameter.name)]
        left = [*context._protected_args, *context.args]  # noqa: SLF001 - a group's words have no public name
        name, command, rest = command.resolve_command(context, left)
        path.append(str(name))


def _is_given(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _of_any_name(name: str) -> str:
    """`rebuild gold.*` for `rebuild gold.metrics_1h`: products and processors have names of the configuration's."""
    for prefix in ("rebuild gold.", "rebuild processor:"):
        if name.startswith(prefix):
            return f"{prefix}*"
    return name
