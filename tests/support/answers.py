"""An HTTP server for lookups, with answers that the test chooses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Rows = list[dict[str, Any]]
QueryResult = tuple[int, bytes]
"""HTTP status and body."""


class Asked:
    """Requests that arrived, and how the server answers.

    Attributes:
        answer: Returns the answer for the keys of a request.
        drip: Seconds between two bytes of an answer.
    """

    def __init__(self, answer: Callable[[Rows], QueryResult]) -> None:
        self.answer = answer
        self.drip = 0.0
        self.requests: list[Rows] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = self.most_at_once = 0
        self.url = ""
        self.lock = threading.Lock()


def rows(found: Rows) -> QueryResult:
    return 200, json.dumps(found).encode()


@contextmanager
def answering(answer: Callable[[Rows], QueryResult]) -> Iterator[Asked]:
    """Runs the server during the block."""
    asked = Asked(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with asked.lock:
                asked.requests.append(keys)
                asked.headers.append(dict(self.headers))
                asked.at_once += 1
                asked.most_at_once = max(asked.most_at_once, asked.at_once)
            try:
                self._reply(*asked.answer(keys))
            except OSError:  # the client has closed the connection
                pass
            finally:
                with asked.lock:
                    asked.at_once -= 1

        def _reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for part in [body] if not asked.drip else [body[i : i + 1] for i in range(len(body))]:
                self.wfile.write(part)
                self.wfile.flush()
                time.sleep(asked.drip)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asked.url = f"http://127.0.0.1:{server.server_address[1]}/owners"
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
