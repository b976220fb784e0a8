"""A local Databricks workspace that answers over HTTP like the REST API, and stores what it receives."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

USER = "ada@example.com"
TOKEN = "dapi-not-to-be-shown"  # noqa: S105 - valid only for this server
HOUR_MS = 3_600_000
ROOT = "/Workspace/Users/ada@example.com/.bundle/sessionlake"


class RefusedError(Exception):
    """An answer of the API with another status than 200."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


@dataclass
class Workspace:
    """Content of the workspace. Tests fill and read it.

    Attributes:
        alerts: The SQL alerts.
        permissions: Permissions of each object, by its kind and id.
        operate: Runs a Python task: takes its parameters, and returns whether it succeeded and its output.
        answers: Answers to SQL statements, in order.
        statements: SQL statements that were received.
    """

    operate: Callable[[list[str]], tuple[bool, str]] = lambda _: (True, "")
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    runs: dict[int, dict[str, Any]] = field(default_factory=dict)
    outputs: dict[int, dict[str, Any]] = field(default_factory=dict)
    warehouses: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "w1", "name": "lake"}])
    answers: list[dict[str, Any]] = field(default_factory=list)
    statements: list[dict[str, Any]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    permissions: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_job(self, name: str, target: str = "prod", creator: str = USER, **settings: Any) -> int:
        """Adds a job and returns its id. Unless the target is empty, it looks as if a bundle deployed it."""
        number = 100 + len(self.jobs)
        if target:
            path = f"{ROOT}/{target}/state/metadata.json"
            settings["deployment"] = {"kind": "BUNDLE", "metadata_file_path": path}
        own = {"job_id": number, "creator_user_name": creator, "settings": {"name": name, **settings}}
        self.jobs[number] = own
        return number

    def add_run(self, job: int, code: str | None = None, message: str = "", **output: Any) -> int:
        """Adds a run of the job and returns its id. The run is RUNNING, or ended with a code."""
        number = 1000 + 10 * len(self.runs)
        begun = HOUR_MS * (1 + len(self.runs))
        run = {"run_id": number, "job_id": job, "start_time": begun, "run_page_url": f"https://page/{number}"}
        run["tasks"] = [{"task_key": "main", "run_id": number + 1, "attempt_number": 0}]
        self.runs[number] = run | {"status": {"state": "RUNNING"}, "end_time": 0}
        self.outputs[number + 1] = output
        if code:
            self._end(number, code, message)
        return number

    def _end(self, number: int, code: str, message: str = "") -> None:
        why = {"code": code, "message": message, "type": "SUCCESS" if code == "SUCCESS" else "CLIENT_ERROR"}
        run = self.runs[number]
        run |= {"status": {"state": "TERMINATED", "termination_details": why}, "end_time": run["start_time"] + HOUR_MS}

    # -- Jobs API 2.2

    def list_jobs(self, **query: str) -> dict[str, Any]:
        """Returns one job per page, to detect clients that read only one page. Only `get` returns clusters."""
        wanted = query.get("name")
        found = [job for job in self.jobs.values() if wanted in {None, job["settings"]["name"]}]
        at = int(query.get("page_token", 0))
        shown = [
            job | {"settings": {k: v for k, v in job["settings"].items() if k != "job_clusters"}}
            for job in found[at : at + 1]
        ]
        return {"jobs": shown, "has_more": at + 1 < len(found)} | (
            {"next_page_token": str(at + 1)} if at + 1 < len(found) else {}
        )

    def get_job(self, job_id: str, **_: str) -> dict[str, Any]:
        return self._one(self.jobs, job_id, "Job")

    def update_job(self, job_id: int, new_settings: dict[str, Any]) -> dict[str, Any]:
        """Replaces each given setting completely."""
        self.get_job(str(job_id))["settings"].update(new_settings)
        return {}

    def run_now(self, job_id: int, python_params: list[str] | None = None, **_: Any) -> dict[str, Any]:
        if not "".join(python_params or ()).isascii():
            raise RefusedError(400, "INVALID_PARAMETER_VALUE", "Parameters must be ASCII.")
        continuous = self.get_job(str(job_id))["settings"].get("continuous")
        if continuous and continuous.get("pause_status") != "PAUSED":
            self.cancel_runs(job_id)
        number = self.add_run(job_id)
        if python_params is not None:
            self.runs[number] |= {"status": {"state": "PENDING"}, "words": python_params}
        return {"run_id": number}

    def list_runs(self, job_id: str, limit: str = "20", completed_only: str = "false", **_: str) -> dict[str, Any]:
        found = [run for run in self.runs.values() if run["job_id"] == int(job_id)]
        if completed_only == "true":
            found = [run for run in found if run["end_time"]]
        return {"runs": found[::-1][: int(limit)], "has_more": len(found) > int(limit)}

    def get_run(self, run_id: str, **_: str) -> dict[str, Any]:
        """Returns a run. A run with parameters advances by one state with each request."""
        run = self._one(self.runs, run_id, "Run")
        words = run.get("words")
        if words is not None and run["status"]["state"] == "RUNNING":
            well, wrote = self.operate(words)
            self.outputs[int(run_id) + 1] = {"logs": wrote} | ({} if well else {"error": "SystemExit: 2"})
            self._end(int(run_id), "SUCCESS" if well else "RUN_EXECUTION_ERROR", "" if well else "task main failed")
        elif words is not None and run["status"]["state"] == "PENDING":
            run["status"] = {"state": "RUNNING"}
        return run

    def get_output(self, run_id: str, **_: str) -> dict[str, Any]:
        return self._one(self.outputs, run_id, "Run")

    def cancel_runs(self, job_id: int) -> dict[str, Any]:
        for number, run in self.runs.items():
            if run["job_id"] == job_id and not run["end_time"]:
                self._end(number, "USER_CANCELED")
        return {}

    # -- SQL

    def execute(self, **request: Any) -> dict[str, Any]:
        """Starts a statement. Its first status is that it is running."""
        self.statements.append(request)
        return {"statement_id": str(len(self.statements)), "status": {"state": "PENDING"}}

    def statement(self, statement_id: str) -> dict[str, Any]:
        return {"statement_id": statement_id} | self.answers[int(statement_id) - 1]

    def chunk(self, statement_id: str, index: str) -> dict[str, Any]:
        return self.answers[int(statement_id) - 1]["chunks"][int(index)]

    def cancel(self, statement_id: str) -> dict[str, Any]:
        self.cancelled.append(statement_id)
        return {}

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        """Returns the API's answer to a request.

        Raises:
            RefusedError: The answer has another status than 200.
        """
        for pattern, does in self._routes():
            if found := re.fullmatch(pattern, f"{method} {path}"):
                return does(**query, **body, **found.groupdict())
        raise RefusedError(404, "ENDPOINT_NOT_FOUND", f"No API found for '{method} {path}'")

    def _routes(self) -> Iterator[tuple[str, Callable[..., dict[str, Any]]]]:
        yield r"GET /.well-known/databricks-config", dict
        yield r"GET /api/2.0/preview/scim/v2/Me", lambda: {"userName": USER}
        yield r"GET /api/2.2/jobs/list", self.list_jobs
        yield r"GET /api/2.2/jobs/get", self.get_job
        yield r"GET /api/2.0/alerts", lambda **_: {"alerts": self.alerts}
        yield r"GET /api/2.0/permissions/(?P<path>.+)", lambda path: self.permissions[path]
        yield r"POST /api/2.2/jobs/update", self.update_job
        yield r"POST /api/2.2/jobs/run-now", self.run_now
        yield r"GET /api/2.2/jobs/runs/list", self.list_runs
        yield r"GET /api/2.2/jobs/runs/get", self.get_run
        yield r"GET /api/2.2/jobs/runs/get-output", self.get_output
        yield r"POST /api/2.2/jobs/runs/cancel-all", self.cancel_runs
        yield r"GET /api/2.0/sql/warehouses", lambda **_: {"warehouses": self.warehouses}
        yield r"POST /api/2.0/sql/statements/?", self.execute
        yield r"GET /api/2.0/sql/statements/(?P<statement_id>\w+)", self.statement
        yield r"POST /api/2.0/sql/statements/(?P<statement_id>\w+)/cancel", self.cancel
        yield r"GET /api/2.0/sql/statements/(?P<statement_id>\w+)/result/chunks/(?P<index>\d+)", self.chunk

    def _one(self, those: dict[int, dict[str, Any]], number: str, what: str) -> dict[str, Any]:
        if int(number) not in those:
            raise RefusedError(400, "INVALID_PARAMETER_VALUE", f"{what} {number} does not exist.")
        return those[int(number)]


class _Handler(BaseHTTPRequestHandler):
    """Handles one request. Requests without the right token are rejected."""

    def __init__(self, workspace: Workspace, *request: Any) -> None:
        self._workspace = workspace
        super().__init__(*request)

    def do_GET(self) -> None:
        self._serve({})

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"))

    def log_message(self, *_: Any) -> None:
        """Suppresses the log, so that requests do not appear in the test's output."""

    def _serve(self, body: dict[str, Any]) -> None:
        url = urlsplit(self.path)
        try:
            if "/api/" in url.path and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise RefusedError(403, "PERMISSION_DENIED", "Invalid access token.")  # noqa: TRY301 - the handler below answers it
            answer, status = self._workspace.answer(self.command, url.path, dict(parse_qsl(url.query)), body), 200
        except RefusedError as refused:
            answer, status = {"error_code": refused.code, "message": str(refused)}, refused.status
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(workspace: Workspace) -> Iterator[str]:
    """Serves the workspace during the block and yields its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, workspace))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
