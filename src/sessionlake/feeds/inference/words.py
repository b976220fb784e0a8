"""Names that producers use for the same things. Inference prefers fields with such names."""

from __future__ import annotations

import re

KINDS = (
    "op", "action", "type", "event", "e", "method", "kind", "msg_type", "messagetype", "message_type", "event_type",
    "eventtype", "cmd", "command", "operation", "channel", "table",
    "subject", "feed", "ch", "m",
)  # fmt: skip
"""Names of fields that say what kind of message it is, best first."""
SESSIONS = (
    "symbol", "instrument_name", "product_id", "instid", "instrument", "pair", "market", "s", "device_id", "deviceid",
    "device", "sensor_id", "sensorid", "station_id", "station", "machine_id", "machine", "vehicle_id", "asset_id",
    "asset", "plant", "site", "thing", "account_id", "account", "ticker", "sym", "sensor", "node", "edge_node",
    "instrument_id", "market_id", "currency_pair",
)  # fmt: skip
"""Names of fields that say to which table a message belongs, best first."""
LOOSE_SESSIONS = ("contract", "code", "cd", "id", "channel", "topic", "stream", "ch")
"""Names of fields that say to which table a message belongs if its rows are in arrays, best first."""
TIMES = (
    "event_time", "eventtime", "ts_ms", "timestamp", "ts", "time", "e", "t", "datetime", "date", "at", "created_at",
    "updated_at", "occurred_at", "measured_at", "published_at",
)  # fmt: skip
"""Names of fields that have the event time, best first."""
SEQS = (
    "seq", "sequence", "sequence_num", "seq_num", "seqno", "seqid", "change_id", "update_id", "updateid",
    "lastupdateid", "u", "version", "revision", "nonce", "counter", "n",
)  # fmt: skip
"""Names of fields that have the number of a message, best first."""
KEYS = (
    "id", "uuid", "key", "row_id", "metric", "tag", "name", "code", "channel", "register", "point", "signal", "sensor",
    "sku", "order_id", "price",
)  # fmt: skip
"""Names of fields that identify a row, best first."""
SIDES = dict.fromkeys(("bid", "bids", "b", "bs", "buy", "buys"), "bid") | dict.fromkeys(
    ("ask", "asks", "a", "as", "sell", "sells", "offer", "offers"), "ask"
)
"""The side of an order book, by the names that it has."""
OF_SNAPSHOT = re.compile(r"snapshot|partial|initial|\binit\b|\bfull\b|image|refresh|^r$|^read$", re.IGNORECASE)
OF_UPDATE = re.compile(
    r"update|change|delta|diff|modif|insert|upsert|delete|remove|create|l2|^[cud]$|^add$", re.IGNORECASE
)
HEARTBEAT = re.compile(r"heartbeat|keep_?alive|^ping$|^hb$", re.IGNORECASE)
OF_CHANGE = re.compile(r"(insert|update|delete|remove|create|add|modif|chang)(e?d|s|ied)?", re.IGNORECASE)
OF_DELETE = re.compile(r"delete|remove|cancel|^d$", re.IGNORECASE)
CHECKSUMS = ("checksum", "check_sum", "crc", "crc32", "cs")
"""Names of fields that have a checksum of the table."""
OF_QUANTITY = re.compile(r"(^|_)(qty|quantity|size|amount|volume|sz|q|v|s)$", re.IGNORECASE)
OF_PRICE = re.compile(r"(^|_)(price|px)(_|$)", re.IGNORECASE)
OF_BOOK = re.compile(r"book|depth|level|l2|quote", re.IGNORECASE)
_EXACT = re.compile(
    r"price|qty|quantity|amount|size|total|balance|cost|fee|tax|volume|bid|ask|rate|strike|notional", re.IGNORECASE
)
_OF_TIME = re.compile(r"(^|_)(ts|t|e|at|time|timestamp|date|datetime|created|updated|changed|modified)(_|$)|time|stamp")
_IDENTIFIES = re.compile(r"(^|_)(id|key|code|zip|phone|number|no|sku|iban|isin)$|id$", re.IGNORECASE)


def is_name_of_exact_number(field_name: str) -> bool:
    """Returns True if a number of this name is usually exact, such as a price, and not a measured value."""
    return _EXACT.search(field_name) is not None


def is_name_of_time(field_name: str) -> bool:
    """Returns True if a field of this name usually has a time."""
    return _OF_TIME.search(field_name.lower()) is not None


def is_name_of_identifier(field_name: str) -> bool:
    """Returns True if a field of this name usually identifies something, so that its digits are no number."""
    return _IDENTIFIES.search(field_name) is not None


def rank_field_name(field_name: str, best_names_first: tuple[str, ...]) -> int:
    """Returns how good a field's name is: the number of names from the best one on, or 0 if it is not among them."""
    return (
        len(best_names_first) - best_names_first.index(field_name.lower())
        if field_name.lower() in best_names_first
        else 0
    )
