"""Checks jobs for faults that a deployment accepts, and that make a run fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from sessionlake.databricks.bundle.files import ResourceFault, YamlMapping
from sessionlake.databricks.bundle.models import suggest_similar_name
from sessionlake.settings.file import KeyPath
from sessionlake.settings.model import PUBLICATIONS_VARIABLE

RefusedCommandExplainer = Callable[[list[str], Mapping[str, str] | None], str | None]
"""Returns why the package's command line rejects parameters, or None if it accepts them.

The second argument is the environment of the run. None means that it is not considered.
"""

_SWITCH = ("true", "false")
_STORES = "com.databricks.sql.streaming.state.", "org.apache.spark.sql.execution.streaming.state."
RUNTIME_CONF: dict[str, tuple[str, ...]] = {
    "spark.databricks.cluster.profile": ("singleNode", "serverless"),
    "spark.databricks.delta.autoCompact.enabled": ("auto", "legacy", *_SWITCH),
    "spark.databricks.delta.optimizeWrite.enabled": _SWITCH,
    "spark.master": (),
    "spark.scheduler.mode": ("FAIR", "FIFO"),
    "spark.sql.redaction.options.regex": (),
    "spark.sql.streaming.stateStore.providerClass": tuple(f"{own}RocksDBStateStoreProvider" for own in _STORES),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": _SWITCH,
}
"""Spark settings that clusters of this bundle may have, and their values; no values mean any value.

Spark accepts a misspelt setting silently, without effect."""
PACKAGE = "sessionlake"
ENTRY_POINT = "sessionlake-job"
"""Entry point for jobs. Unlike the package's other entry point, it rejects commands that jobs may not run."""
_PUBLISH = "publish"
_COMPUTE = ("job_cluster_key", "environment_key", "new_cluster", "existing_cluster_id")
_SIZES = ("autoscale", "num_workers", "is_single_node")
_KIND, _PROFILE = "CLASSIC_PREVIEW", "spark.databricks.cluster.profile"
_MODES = {"SINGLE_USER", "DATA_SECURITY_MODE_DEDICATED"}


def find_job_faults(job: YamlMapping, explain_why_job_may_not_run: RefusedCommandExplainer) -> Iterator[ResourceFault]:
    """Yields key and text of all faults of one job.

    Args:
        job: The job as the bundle declares it, with all variables replaced by their values.
        explain_why_job_may_not_run: Returns why the package's command line rejects a job's parameters, or None.
    """
    yield from _find_task_faults(job)
    yield from _find_task_command_faults(job, explain_why_job_may_not_run)
    yield from _find_job_trigger_faults(job)
    yield from _find_task_compute_faults(job)
    yield from _find_job_cluster_faults(job)


def _find_task_faults(job: YamlMapping) -> Iterator[ResourceFault]:
    tasks = job.get("tasks", [])
    if not tasks:
        yield (), "the job has no tasks: is its key misspelt?"
    keys = [task["task_key"] for task in tasks]
    yield from ((("tasks",), f"task key {key!r} is used {n} times") for key, n in Counter(keys).items() if n > 1)
    defined = {
        "environment_key": {item["environment_key"] for item in job.get("environments", [])},
        "job_cluster_key": {item["job_cluster_key"] for item in job.get("job_clusters", [])},
    }
    for key, before in list_preceding_tasks_of_each_task(job).items() if tasks else ():
        if key in before and key not in _list_direct_dependencies(tasks[keys.index(key)]):
            yield ("tasks",), f"task {key!r} waits for itself through the tasks that it depends on"
    for number, task in enumerate(tasks):
        for position, needed in enumerate(item["task_key"] for item in task.get("depends_on") or ()):
            place: KeyPath = ("tasks", number, "depends_on", position, "task_key")
            if needed == task["task_key"]:
                yield place, f"task {needed!r} depends on itself"
            elif needed not in keys:
                yield place, f"task {task['task_key']!r} depends on {needed!r}, which is not a task"
        for field, known in defined.items():
            if field in task and task[field] not in known:
                yield ("tasks", number, field), f"task {task['task_key']!r}: {field} {task[field]!r} is not defined"


def _list_direct_dependencies(task: YamlMapping) -> set[str]:
    return {item["task_key"] for item in task.get("depends_on") or ()}


def list_preceding_tasks_of_each_task(job: YamlMapping) -> dict[str, set[str]]:
    """Returns, for each task of a job, the tasks that have ended when it starts, by task key."""
    needs = {task["task_key"]: _list_direct_dependencies(task) for task in job["tasks"]}
    for _ in needs:
        needs = {key: own.union(*(needs.get(one, set()) for one in own)) for key, own in needs.items()}
    return needs


def _find_task_command_faults(
    job: YamlMapping, explain_why_job_may_not_run: RefusedCommandExplainer
) -> Iterator[ResourceFault]:
    """Yields key and text of faults in the entry point and parameters of tasks that run the package's wheel."""
    for number, task in enumerate(job.get("tasks", [])):
        wheel, key = task.get("python_wheel_task", {}), ("tasks", number, "python_wheel_task")
        name = str(wheel.get("package_name", ""))
        if name != PACKAGE:
            if wheel.get("entry_point") == ENTRY_POINT or suggest_similar_name(name, [PACKAGE]):
                yield (*key, "package_name"), f"the entry point is one of the package {PACKAGE}, not of {name!r}"
            continue
        if wheel["entry_point"] != ENTRY_POINT:
            yield (*key, "entry_point"), f"the entry point of a job must be {ENTRY_POINT}, not {wheel['entry_point']!r}"
        words = [str(word) for word in wheel.get("parameters", [])]
        if why := explain_why_job_may_not_run(
            words, _read_publications_variable_of_task(job, task) if words[:1] == [_PUBLISH] else None
        ):
            yield (*key, "parameters"), f"task {task['task_key']!r}: {why}"


def _read_publications_variable_of_task(job: YamlMapping, task: YamlMapping) -> dict[str, str] | None:
    """Returns the environment variable that says what a task may publish; None if its cluster does not set it."""
    for item in job.get("job_clusters", []):
        variables = item.get("new_cluster", {}).get("spark_env_vars") or {}
        if item.get("job_cluster_key") == task.get("job_cluster_key") and PUBLICATIONS_VARIABLE in variables:
            return {PUBLICATIONS_VARIABLE: str(variables[PUBLICATIONS_VARIABLE])}
    return None


def _find_job_trigger_faults(job: YamlMapping) -> Iterator[ResourceFault]:
    if "continuous" not in job:
        return
    for kind in ("schedule", "trigger"):
        if kind in job:
            yield (kind,), f"a job may not have both continuous and {kind}"
    if job["continuous"].get("task_retry_mode", "NEVER") != "NEVER":
        # A task that is retried within its run keeps the run alive, so no notification reports the failure.
        yield (
            ("continuous", "task_retry_mode"),
            "task_retry_mode must be NEVER, so that a failure is reported and a new run starts",
        )
    for number, task in enumerate(job.get("tasks", [])):
        for field in ("depends_on", "max_retries"):
            if field in task:
                yield ("tasks", number, field), f"task {task['task_key']!r}: a continuous job may not have {field}"


def _find_task_compute_faults(job: YamlMapping) -> Iterator[ResourceFault]:
    """Yields faults of tasks that lack work or compute or have several, and of clusters that no task uses."""
    for number, task in enumerate(job.get("tasks", [])):
        what, key = f"task {task['task_key']!r}", ("tasks", number)
        work = sorted(name for name in task if name.endswith("_task") and task[name] is not None)
        if len(work) != 1:
            yield key, f"{what} must have exactly one kind of work, such as python_wheel_task, found {work or 'none'}"
        compute = [name for name in _COMPUTE if task.get(name) is not None]
        if work == ["python_wheel_task"] and len(compute) != 1:
            yield key, f"{what} must have exactly one of {', '.join(_COMPUTE)}, found {', '.join(compute) or 'none'}"
        installed = [own for own in task.get("libraries") or () if isinstance(own, dict) and own.get("whl")]
        if work == ["python_wheel_task"] and not installed and "environment_key" not in task:
            where = (*key, "libraries") if task.get("libraries") else key
            yield where, f"{what} installs no wheel, so its cluster lacks the package. Add libraries with whl"
    used = {task.get("job_cluster_key") for task in job.get("tasks", [])}
    for number, item in enumerate(job.get("job_clusters", [])):
        if item.get("job_cluster_key") not in used:
            yield ("job_clusters", number), f"no task uses the cluster {item.get('job_cluster_key')!r}"
    yield from _find_health_rule_faults(job)


def _find_health_rule_faults(job: YamlMapping) -> Iterator[ResourceFault]:
    """Yields faults of health rules: some can never hold because the run's timeout is shorter, or have wrong values."""
    timeout = job.get("timeout_seconds")
    for number, rule in enumerate((job.get("health") or {}).get("rules") or ()):
        value, is_duration = rule.get("value"), rule.get("metric") == "RUN_DURATION_SECONDS"
        if is_duration and isinstance(value, int) and isinstance(timeout, int) and 0 < timeout <= value:
            text = f"a run ends after timeout_seconds, {timeout}, so it never takes {value} seconds"
            yield ("health", "rules", number), text
        if isinstance(value, int) and value < 1:
            yield ("health", "rules", number, "value"), f"a rule's value must be at least 1, found {value}"


def _find_spark_conf_faults(cluster: YamlMapping) -> Iterator[tuple[str, str]]:
    """Yields name and fault of each Spark setting of a cluster with an unknown name or value."""
    for conf, value in (cluster.get("spark_conf") or {}).items():
        known = list(RUNTIME_CONF.get(conf, ()))
        if conf not in RUNTIME_CONF:
            yield conf, f"spark_conf: {conf} is not one of the known settings (RUNTIME_CONF)"
        elif known and _format_spark_conf_value(value) not in known:
            yield (
                conf,
                f"spark_conf: {conf}: {value!r} is not one of {', '.join(known)}{suggest_similar_name(value, known)}",
            )


def _format_spark_conf_value(value: object) -> str:
    """Returns the value of a Spark setting as Spark reads it: YAML's true becomes the text true."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _find_job_cluster_faults(job: YamlMapping) -> Iterator[ResourceFault]:
    for number, item in enumerate(job.get("job_clusters", [])):
        cluster, key = item.get("new_cluster", {}), ("job_clusters", number, "new_cluster")
        if cluster.get("data_security_mode") not in _MODES:
            yield key, f"data_security_mode must be SINGLE_USER, found {cluster.get('data_security_mode')}"
        yield from (((*key, "spark_conf", conf), text) for conf, text in _find_spark_conf_faults(cluster))
        sizes = [name for name in _SIZES if cluster.get(name) not in (None, False)]
        if len(sizes) != 1:
            text = f"a cluster must have exactly one of {', '.join(_SIZES)}, found {', '.join(sizes) or 'none'}"
            yield (*key, *sizes[-1:]), text
        if cluster.get("is_single_node") and cluster.get("kind") != _KIND:
            yield (*key, "is_single_node"), f"is_single_node needs kind: {_KIND}, found {cluster.get('kind')}"
        if cluster.get("num_workers") == 0 and cluster.get("spark_conf", {}).get(_PROFILE) != "singleNode":
            yield (*key, "num_workers"), "a cluster without workers runs nothing. Use is_single_node: true"
        for name in ("spark_version", "node_type_id"):
            if not (cluster.get(name) or (cluster.get("instance_pool_id") and name == "node_type_id")):
                yield (*key, name), f"a cluster needs {name}"
