"""Checks the jobs of a target together: each layer has one writer, and each run ends or lasts as its trigger needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from sessionlake.databricks.bundle.files import ResolvedTarget, ResourceFault, YamlMapping
from sessionlake.databricks.bundle.job_rules import PACKAGE, list_preceding_tasks_of_each_task
from sessionlake.settings.file import KeyPath

LAYERS = ("bronze", "silver", "gold")
_RUN, _ALL, _ONCE = "run", "all", "--once"
_NOTIFICATIONS = ("email_notifications", "webhook_notifications")
_RUNNING = "UNPAUSED"
_ENDLESS = {"run", "maintain", "publish"}
"""Commands that run until they are stopped, unless they have the option --once."""
_PARAMETERS = ("tasks", 0, "python_wheel_task", "parameters")


def find_faults_of_layer_jobs(target: ResolvedTarget) -> Iterator[tuple[str, ResourceFault]]:
    """Yields the faults of a target's jobs that concern layers: key of the job, and key and text of the fault."""
    always, running = defaultdict(list), defaultdict(list)
    for key, job in target.jobs.items():
        yield from ((key, fault) for fault in _find_faults_of_layer_runs(job))
        trigger = job.get("continuous") or job.get("schedule") or {}
        for layer in _list_layers_of_job(job):
            if "continuous" in job and len(_list_layers_of_job(job)) == 1:
                always[layer].append(key)
            if trigger.get("pause_status") == _RUNNING:
                running[layer].append(key)
    for layer, keys in always.items():
        if len(keys) > 1:
            text = f"the jobs {' and '.join(sorted(keys))} both run {layer}, which must have one writer"
            yield from ((key, (_PARAMETERS, text)) for key in keys)
    for layer, keys in running.items():
        if len(keys) > 1:
            text = f"the jobs {' and '.join(sorted(keys))} both run {layer} and are not paused. Pause one of them"
            yield from ((key, (_find_key_of_job_trigger(target.jobs[key]), text)) for key in keys)


def find_jobs_without_failure_notification(target: ResolvedTarget) -> Iterator[ResourceFault]:
    """Yields key and fault of each job of a production target whose failures are notified to nobody."""
    for key, job in target.jobs.items() if target.is_production else ():
        if not any((job.get(kind) or {}).get("on_failure") for kind in _NOTIFICATIONS):
            text = f"jobs.{key}: nobody is notified of a failure: {' and '.join(_NOTIFICATIONS)} have no on_failure"
            yield ("resources", "jobs", key, _NOTIFICATIONS[0]), text


def _find_key_of_job_trigger(job: YamlMapping) -> KeyPath:
    return ("continuous" if "continuous" in job else "schedule", "pause_status")


def _list_commands_of_job(job: YamlMapping) -> list[list[str]]:
    wheels = [task.get("python_wheel_task") or {} for task in job.get("tasks") or ()]
    return [[str(word) for word in own.get("parameters") or ()] for own in wheels if own.get("package_name") == PACKAGE]


def _list_layers_of_command(words: list[str]) -> tuple[str, ...]:
    """Returns the layers that a command line runs; empty if it is not `run`."""
    if words[:1] != [_RUN] or len(words) == 1:
        return ()
    return LAYERS if words[1] == _ALL else (words[1],)


def _list_layers_of_job(job: YamlMapping) -> set[str]:
    return {layer for words in _list_commands_of_job(job) for layer in _list_layers_of_command(words)}


def _find_faults_of_layer_runs(job: YamlMapping) -> Iterator[ResourceFault]:
    commands = _list_commands_of_job(job)
    layers = [_list_layers_of_command(words) for words in commands]
    if any(layers) and job.get("max_concurrent_runs", 1) != 1:
        yield ("max_concurrent_runs",), "must be 1: two runs of a layer must not share a checkpoint"
    for number, words in enumerate(commands):
        key = ("tasks", number, "python_wheel_task", "parameters")
        if "continuous" in job and _ONCE in words:
            yield key, f"a continuous job must not run {_ONCE}: each run would start a new cluster"
        if "schedule" in job and words[:1] and words[0] in _ENDLESS and _ONCE not in words:
            yield key, f"a job with a schedule must run {_ONCE}: otherwise its run does not end before its timeout"
    yield from _find_faults_of_layer_order(job, layers)


def _find_faults_of_layer_order(job: YamlMapping, layers: list[tuple[str, ...]]) -> Iterator[ResourceFault]:
    """Yields faults of tasks that run a layer without waiting for the task that runs the layer before it.

    Args:
        job: The job.
        layers: The layers that each task runs.
    """
    tasks = job.get("tasks") or []
    if len(layers) != len(tasks):
        return
    order = list_preceding_tasks_of_each_task(job) if tasks else {}
    made: dict[str, str] = {}
    for task, own in zip(tasks, layers, strict=True):
        made |= dict.fromkeys(own, task["task_key"])
    for number, (task, own) in enumerate(zip(tasks, layers, strict=True)):
        for layer in own:
            before = made.get(LAYERS[LAYERS.index(layer) - 1]) if layer in LAYERS[1:] else None
            if before not in {None, task["task_key"]} and before not in order[task["task_key"]]:
                yield ("tasks", number), f"task {task['task_key']!r} runs {layer}, so it must depend on {before!r}"
