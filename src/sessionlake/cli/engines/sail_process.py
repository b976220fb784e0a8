"""Runs statements with Sail: the process that `sail.SailEngine` starts.

Reads lines of JSON from standard input: `setup` (statements to run first) and `sql`. For each it writes to standard
output a line of JSON, `{"error": null}` or with the error's text; and if there was none, the result as an Arrow IPC
stream, and such a line again, because Sail may fail after it has computed a part of the result.

Sail serves SQL on a TCP port without a password. So this process first leaves the network of the machine, where the
system allows it (Linux with user namespaces), and no other process can connect to the port.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import sys
import time
from threading import Thread
from typing import Any

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET of unshare(2)
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS and IFF_UP of netdevice(7)
_COMMAND = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
_SEVEN_BITS = 0x7F
_PAUSE_SECONDS = 0.5


def isolate_process_from_network() -> bool:
    """Moves this process into a new network that has only a loopback interface. Must run before threads start.

    Returns:
        True if that worked; False if the system does not allow it.
    """
    if sys.platform != "linux":
        return False
    system = ctypes.CDLL(None)
    if not hasattr(system, "unshare") or system.unshare(_NEW_USER | _NEW_NETWORK) != 0:
        return False
    from fcntl import ioctl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    return True


def encode_flight_sql_request(sql: str) -> bytes:
    """Returns the request of Arrow Flight SQL that runs a statement: two nested Protobuf messages of text fields."""
    return _encode_protobuf_field(1, _COMMAND) + _encode_protobuf_field(2, _encode_protobuf_field(1, sql.encode()))


def _encode_protobuf_field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _encode_protobuf_length(len(content)) + content


def _encode_protobuf_length(length: int) -> bytes:
    if length <= _SEVEN_BITS:
        return bytes([length])
    return bytes([length & _SEVEN_BITS | _SEVEN_BITS + 1]) + _encode_protobuf_length(length >> 7)


class _SailConnection:
    """Starts a Sail server in this process, and is a connection to it."""

    def __init__(self) -> None:
        from pyarrow import flight
        from pysail.flight import FlightSqlServer

        self._server = FlightSqlServer("127.0.0.1", 0)
        self._server.start(background=True)
        host, port = self._server.listening_address
        self._client = flight.FlightClient(f"grpc://{host}:{port}")

    def start_statement_and_open_result(self, sql: str) -> Any:
        """Starts a statement, and returns a reader for its result."""
        from pyarrow import flight

        info = self._client.get_flight_info(flight.FlightDescriptor.for_command(encode_flight_sql_request(sql)))
        return self._client.do_get(info.endpoints[0].ticket)


def main() -> None:
    """Runs statements until standard input ends."""
    isolate_process_from_network()
    Thread(target=_exit_when_parent_has_ended, args=(os.getppid(),), daemon=True).start()
    import pyarrow as pa

    connection = _SailConnection()  # before the first statement is there: both take time
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            for sql in request["setup"]:
                connection.start_statement_and_open_result(sql).read_all()
            result = connection.start_statement_and_open_result(request["sql"]).to_reader()
        except (pa.ArrowException, OSError, KeyError) as error:
            _write_status_line(str(error))
            continue
        _write_status_line(None)
        _write_status_line(_write_arrow_result(result))


def _exit_when_parent_has_ended(parent: int) -> None:
    """Ends this process once its parent has ended, even if the parent was killed while Sail computes."""
    while os.getppid() == parent:
        time.sleep(_PAUSE_SECONDS)
    os._exit(1)


def _write_arrow_result(result: Any) -> str | None:
    """Writes the result as an Arrow IPC stream to standard output. Returns the error that ended it early, or None."""
    import pyarrow as pa

    with pa.ipc.new_stream(sys.stdout.buffer, result.schema) as stream:
        batches = iter(result)
        while True:
            try:
                batch = next(batches, None)  # Sail computes while it is read
            except (pa.ArrowException, OSError) as failure:
                return str(failure)
            if batch is None:
                return None
            stream.write_batch(batch)


def _write_status_line(error: str | None) -> None:
    sys.stdout.buffer.write(json.dumps({"error": error}).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
