"""Feeds that use presets, and messages of their senders. The frames are made by hand, after what senders document."""

from __future__ import annotations

from typing import Any

UNAVAILABLE = "__debezium_unavailable_value"
ORDERS = """
name: orders
topics: 'shop\\..+'
uses: debezium
key: [id]
columns: {id: bigint, customer: string, note: string, total: {type: "decimal(10,2)", from: base64},
          changed: {type: timestamp, from: epoch_us}, due: {type: date, from: days}}
"""
ORDER = {"id": 7, "customer": "ada", "note": "n", "total": "MDk=", "changed": 1_700_000_000_000_001, "due": 20_000}
SOURCE = {"version": "2.7.0", "connector": "postgresql", "ts_ms": 1_700_000_000_123, "snapshot": "false", "lsn": 5}


def envelope(op: str, before: Any = None, after: Any = None, **given: Any) -> dict[str, Any]:
    """A change as Debezium's envelope has it."""
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1_700_000_000_456} | given


def with_schema(payload: Any) -> dict[str, Any]:
    """A value as Kafka Connect's JSON converter sends it with schemas."""
    return {"schema": {"type": "struct", "fields": [], "optional": False, "name": "x.Envelope"}, "payload": payload}


DEBEZIUM = [
    envelope("r", None, ORDER),
    with_schema(envelope("c", None, ORDER)),
    envelope("u", None, ORDER | {"note": UNAVAILABLE}),
    envelope("d", {"id": 7, "customer": None}),
    envelope("t"),
    envelope("m", message={"prefix": "p", "content": "eA=="}),
]
CUSTOMERS = """
name: customers
topics: 'shop\\..+'
uses: maxwell
key: [region, id]
columns: {region: string, id: bigint, name: string, credit: "decimal(8,2)"}
"""
CUSTOMER = {"region": "eu", "id": 1, "name": "ada", "credit": 12.5}


def maxwell(kind: str, data: Any = None, old: Any = None) -> dict[str, Any]:
    """A message of Maxwell's daemon."""
    found = {"database": "shop", "table": "customers", "type": kind, "ts": 1_700_000_000, "xid": 7, "commit": True}
    return found | ({} if data is None else {"data": data}) | ({} if old is None else {"old": old})


MAXWELL = [
    maxwell("bootstrap-start", {}),
    maxwell("bootstrap-insert", CUSTOMER),
    maxwell("bootstrap-complete", {}),
    maxwell("insert", CUSTOMER | {"id": 2}),
    maxwell("update", CUSTOMER | {"name": "eve"}, {"name": "ada"}),
    maxwell("update", CUSTOMER | {"id": 3}, {"id": 2}),
    maxwell("delete", CUSTOMER),
    maxwell("table-alter"),
]
SETTINGS = """
name: settings
topics: settings
uses: upsert
key: [id]
columns: {id: string, v: bigint, w: string}
"""
UPSERT = [{"id": "a", "v": 1, "w": "x"}, {"v": 2}, with_schema({"id": "b", "v": 3})]
THINGS = "{name: things, topics: things, uses: aws_shadow}"


def shadow(previous: int | None, current: int, reported: Any, desired: Any = None) -> dict[str, Any]:
    """A message of the topic `shadow/update/documents`."""

    def state(version: int, values: Any) -> dict[str, Any]:
        return {"state": {"desired": desired, "reported": values}, "metadata": {}, "version": version}

    older = {} if previous is None else {"previous": state(previous, {})}
    return older | {"current": state(current, reported), "timestamp": 1_700_000_000, "clientToken": "t"}


PLC = "{name: plc, topics: plc, uses: opcua}"


def data_set(kind: str | None, seq: int, payload: Any = None, writer: int = 1) -> dict[str, Any]:
    """A data set message of OPC UA PubSub."""
    found = {"DataSetWriterId": writer, "SequenceNumber": seq, "Timestamp": "2026-01-31T12:00:00.5Z"}
    found |= {} if kind is None else {"MessageType": kind}
    return found | ({} if payload is None else {"Payload": payload})


def network(*messages: dict[str, Any], kind: str = "ua-data") -> dict[str, Any]:
    """A network message of OPC UA PubSub."""
    return {"MessageId": "m", "MessageType": kind, "PublisherId": "plc1", "Messages": [*messages]}
