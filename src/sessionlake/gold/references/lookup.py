"""Lookups: they fetch rows of a reference table for given keys, over HTTP or by the user's Python code."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from sessionlake.errors import ConfigError, LakeError, MachineSetupError
from sessionlake.protocol.types import Row
from sessionlake.settings.named_code import NamedCodeError, load_named_code
from sessionlake.settings.references import LookupSettings

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

_MAX_BYTES = 16 << 20
_CHUNK_BYTES = 64 << 10
_BACKOFF_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 10
_RETRIED_STATUSES = (429, 500, 502, 503, 504)
_OK = 200


class LookupFailedError(LakeError):
    """A lookup request failed. Gold requests the same keys again later.

    Attributes:
        kind: one word for the kind of failure, such as `timeout`. Failures are counted by it.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Lookup(Protocol):
    """Interface of objects that fetch rows of a reference table. Several threads use an instance at the same time."""

    def fetch(self, keys: Sequence[Row]) -> list[Row]:
        """Returns the rows of some keys. A key can have several rows; an unknown key has none.

        Args:
            keys: the keys, each as a dict of values by name of the key column.

        Returns:
            The rows, each as a dict of values by column name. `valid_from` and `valid_to` are optional.

        Raises:
            LookupFailedError: no usable answer came within the allowed attempts.
        """


def create_lookup(settings: LookupSettings, where: str) -> Lookup:
    """Returns the lookup that the settings declare, by URL or by Python code.

    Args:
        settings: the settings of the lookup.
        where: the configuration key of the reference table, for error texts.

    Raises:
        ConfigError: the Python code does not exist, or is not a lookup.
        MachineSetupError: a package is missing.
    """
    if settings.python is None:
        return HttpLookup(settings)
    try:
        found = load_named_code(settings.python, object, str(Path.cwd()))
    except NamedCodeError as error:
        raise ConfigError(
            f"{where}.lookup.python: {error}",
            why="The lookup fetches missing rows of the reference table",
            fix="Write `module:name`, and start sessionlake where Python can import the module",
        ) from error
    if not callable(getattr(found, "fetch", None)):
        raise ConfigError(
            f"{where}.lookup.python: {settings.python} has no method `fetch`",
            fix="Name an object that has the methods of `sessionlake.gold.references.lookup.Lookup`",
        )
    return cast("Lookup", found)


class HttpLookup(Lookup):
    """A lookup that sends keys by HTTP POST as a JSON array of objects, and expects a JSON array of rows.

    Every attempt has a timeout. The answer must arrive before a deadline and must not exceed a maximum size. If the
    server is busy or fails, the request is repeated after a pause that doubles each time.
    """

    def __init__(self, settings: LookupSettings) -> None:
        self._settings = settings
        self._url = settings.url or ""
        self._pool = _create_connection_pool(settings)

    def fetch(self, keys: Sequence[Row]) -> list[Row]:
        import urllib3

        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._settings.token is not None:
            headers["Authorization"] = f"Bearer {self._settings.token.get_secret_value()}"
        body = json.dumps(list(keys)).encode()
        try:
            answer = self._pool.request("POST", self._url, body=body, headers=headers, preload_content=False)
            try:
                return _parse_lookup_answer(answer.status, self._read_answer_body_within_limit(answer))
            finally:
                answer.release_conn()
        except urllib3.exceptions.TimeoutError:
            raise LookupFailedError("timeout", "no answer in time") from None
        except urllib3.exceptions.MaxRetryError as error:
            refused = isinstance(error.reason, urllib3.exceptions.NewConnectionError)
            timed = isinstance(error.reason, urllib3.exceptions.TimeoutError) and not refused
            kind, text = ("timeout", "no answer in time") if timed else ("connection", type(error.reason).__name__)
            raise LookupFailedError(kind, text) from None
        except urllib3.exceptions.HTTPError as error:
            raise LookupFailedError("connection", type(error).__name__) from None

    def _read_answer_body_within_limit(self, answer: BaseHTTPResponse) -> bytes:
        """Returns the body of an HTTP answer.

        Raises:
            LookupFailedError: the body takes longer than the setting `timeout`, or has more than 16 MiB.
        """
        until = time.monotonic() + self._settings.timeout.total_seconds()
        parts, size = list[bytes](), 0
        while part := answer.read1(_CHUNK_BYTES):  # returns what has arrived; `read` would wait for a full chunk
            parts.append(part)
            size += len(part)
            if size > _MAX_BYTES or time.monotonic() > until:
                answer.close()
                kind = "size" if size > _MAX_BYTES else "timeout"
                raise LookupFailedError(kind, f"the answer has more than {_MAX_BYTES} bytes or takes too long")
        return b"".join(parts)


def _create_connection_pool(settings: LookupSettings) -> PoolManager:
    try:
        import urllib3
    except ImportError:
        raise MachineSetupError(
            "a lookup over HTTP needs the package urllib3, which is not installed",
            fix="Run `pip install 'sessionlake[lookups]'`",
        ) from None
    retries = urllib3.Retry(
        total=settings.attempts - 1,
        backoff_factor=_BACKOFF_SECONDS,
        backoff_max=_MAX_PAUSE_SECONDS,
        status_forcelist=_RETRIED_STATUSES,
        allowed_methods=["POST"],  # a repeated lookup does no harm
        redirect=False,
        raise_on_status=False,
        respect_retry_after_header=False,  # a server that asks for an hour would stop all lookups for an hour
    )
    seconds = settings.timeout.total_seconds()
    timeout = urllib3.Timeout(connect=seconds, read=seconds)
    return urllib3.PoolManager(num_pools=1, maxsize=settings.in_flight, block=True, timeout=timeout, retries=retries)


def _parse_lookup_answer(status: int, content: bytes) -> list[Row]:
    if status != _OK:
        raise LookupFailedError(f"http_{status}", f"the server answered with status {status}")
    try:
        found: Any = json.loads(content)
    except ValueError:
        raise LookupFailedError("answer", "the answer is not JSON") from None
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise LookupFailedError("answer", "the answer is not a JSON array of objects")
    return found
