"""Decides which commands and options a run of a Databricks job may use: those in a closed list.

A user who may start a job can also replace its arguments, and the run acts with the rights of the tables' owner. So
`sessionlake-job`, the entry point of all jobs, accepts only the commands and options in this list. It accepts no SQL,
no files from outside the bundle, and no other configuration. To read tables, a user works with their own rights, in a
SQL warehouse or a notebook.
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
"""The commands, and the parameters allowed with each, named as in the functions that implement the commands."""


def explain_why_job_may_not_run(
    command: Any, arguments: Sequence[str], environ: Mapping[str, str] | None = None
) -> str | None:
    """Returns why a run of a job may not execute a command line; None if it may.

    Args:
        command: The root command of the command line.
        arguments: The words of the command line, without the program's name.
        environ: The environment of the run. If it is None, files and publications are not checked.
    """
    try:
        name, context = _parse_command_line(command, arguments)
    except UsageError as error:
        return str(error)
    except typer.Exit:  # --help and --version
        return None
    known = next((listed for listed in (name, _replace_configured_name_by_wildcard(name)) if listed in ALLOWED), None)
    if known is None:
        return (
            f"a job does not run `{name}`, because it acts with the rights of the tables' owner. It runs "
            f"{', '.join(ALLOWED)}. To read tables, use your own rights: a SQL warehouse, a notebook, or "
            "`sessionlake remote query`"
        )
    given = {parameter.name for parameter in context.command.params if _is_option_given(context, parameter.name)}
    if others := sorted(given - ALLOWED[known]):
        takes = ", ".join(sorted(ALLOWED[known])) or "no options"
        return f"in a job, `{name}` accepts {takes}, but not {', '.join(others)}"
    return None if environ is None else _explain_missing_file_or_publication(name, context.params, environ)


def _explain_missing_file_or_publication(
    name: str, values: Mapping[str, Any], environ: Mapping[str, str]
) -> str | None:
    """Returns why the deployment lacks a file or publication that the command names; None if it has it."""
    file = values.get("file")
    folder = Path(environ[CONFIG_VARIABLE]).resolve().parent if CONFIG_VARIABLE in environ else Path.cwd()
    if file is not None and not Path(file).resolve().is_relative_to(folder):
        return f"{file} is not deployed with the bundle: put it into {folder}, beside the settings file, and deploy"
    if name != "publish":
        return None
    wanted = f"{values['table']}={values['topic']}"
    listed = [one.strip() for one in environ.get(PUBLICATIONS_VARIABLE, "").split(",") if one.strip()]
    if wanted in listed:
        return None
    return (
        f"this deployment publishes {', '.join(listed) or 'nothing'}, but not {wanted}: "
        f"add it to {PUBLICATIONS_VARIABLE} in databricks.yml, and deploy"
    )


def _parse_command_line(command: Any, arguments: Sequence[str]) -> tuple[str, Any]:
    """Returns the command that the arguments name, such as `rebuild silver`, and click's context with its parameters.

    Raises:
        UsageError: The arguments are not a valid command line.
    """
    try:
        with redirect_stdout(io.StringIO()):  # the help text is printed later, when the command line is run
            return _parse_command_path_and_parameters(command, arguments)
    except Exception as error:
        if hasattr(error, "format_message"):  # Typer's own usage errors
            raise UsageError(str(error.format_message())) from None
        raise


def _parse_command_path_and_parameters(command: Any, arguments: Sequence[str]) -> tuple[str, Any]:
    path: list[str] = []
    context, name, rest = None, PROGRAM, list(arguments)
    while True:
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "resolve_command"):
            return " ".join(path), context
        # Options before the command's name become part of the name, which is then not in the list.
        path += [f"--{parameter.name}" for parameter in command.params if _is_option_given(context, parameter.name)]
        left = [*context._protected_args, *context.args]  # noqa: SLF001 - a group's words have no public name
        name, command, rest = command.resolve_command(context, left)
        path.append(str(name))


def _is_option_given(context: Any, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _replace_configured_name_by_wildcard(name: str) -> str:
    """Returns a command with `*` instead of a configured name: `rebuild gold.*` for `rebuild gold.metrics_1h`."""
    for prefix in ("rebuild gold.", "rebuild processor:"):
        if name.startswith(prefix):
            return f"{prefix}*"
    return name
