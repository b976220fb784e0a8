"""Runs one statement with Sail: the process that `sail.SailEngine` starts.

Reads one JSON object from standard input: `setup` (statements to run first) and `sql`. Writes one line of JSON to
standard output, `{"error": null}` or the error's text, and then the result as an Arrow IPC stream.

Sail serves SQL on a TCP port without a password. So this process first leaves the network of the machine, where the
system allows it (Linux with user namespaces), and no other process can connect to the port.
"""

from __future__ import annotations

import ctypes
import json
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET of unshare(2)
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS and IFF_UP of netdevice(7)
_COMMAND = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
_SEVEN_BITS = 0x7F


def leave_network() -> bool:
    """Moves this process into a network of its own, which has only a loopback interface. Must run before threads start.

    Returns:
        False if the system does not allow it.
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


def encode_statement(sql: str) -> bytes:
    """Returns the command of Arrow Flight SQL for a statement: two nested Protobuf messages of text fields."""
    return _encode_field(1, _COMMAND) + _encode_field(2, _encode_field(1, sql.encode()))


def _encode_field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _encode_length(len(content)) + content


def _encode_length(length: int) -> bytes:
    if length <= _SEVEN_BITS:
        return bytes([length])
    return bytes([length & _SEVEN_BITS | _SEVEN_BITS + 1]) + _encode_length(length >> 7)


class _Connection:
    """A connection to a new Sail server in this process."""

    def __init__(self) -> None:
        from pyarrow import flight
        from pysail.flight import FlightSqlServer

        self._server = FlightSqlServer("127.0.0.1", 0)
        self._server.start(background=True)
        host, port = self._server.listening_address
        self._client = flight.FlightClient(f"grpc://{host}:{port}")

    def open_result(self, sql: str) -> Any:
        """Starts a statement, and returns a reader of its result."""
        from pyarrow import flight

        info = self._client.get_flight_info(flight.FlightDescriptor.for_command(encode_statement(sql)))
        return self._client.do_get(info.endpoints[0].ticket)


def main() -> None:
    """Runs the statement and ends the process."""
    leave_network()
    import pyarrow as pa

    out = sys.stdout.buffer
    connection = _Connection()  # before the statement is there: both take time
    request = json.loads(sys.stdin.buffer.readline() or b"null")
    if request is None:
        return  # the statement is not for Sail
    try:
        for sql in request["setup"]:
            connection.open_result(sql).read_all()
        result = connection.open_result(request["sql"]).to_reader()
    except (pa.ArrowException, OSError, KeyError) as error:
        out.write(json.dumps({"error": str(error)}).encode() + b"\n")
        return
    out.write(b'{"error": null}\n')
    with suppress(BrokenPipeError), pa.ipc.new_stream(out, result.schema) as stream:
        for batch in result:
            stream.write_batch(batch)


if __name__ == "__main__":
    main()
