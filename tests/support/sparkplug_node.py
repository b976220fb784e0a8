"""An edge node of Sparkplug B: random births, data and deaths, encoded by pysparkplug, and the rows that they leave.

The rows are a plain fold over the values that were given to the encoder. It shares no code with the project.
"""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pysparkplug import DataType, DBirth, DData, DDeath, Metric, NBirth, NData, NDeath

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = 1_700_000_000_000
_TYPES = [
    one for one in DataType if one.name not in {"UNKNOWN", "DATASET", "TEMPLATE", "PROPERTYSET", "PROPERTYSETLIST"}
]
_NAMES = {"DATETIME": "DateTime", "UUID": "UUID", "UINT": "UInt", "INT": "Int"}
_DEVICES = ("pump", "valve 2", "ä")
RowKey = tuple[str, str, bool]


@dataclass
class Node:
    """A node with its devices.

    Attributes:
        rnd: Chooses actions and values.
        typed: True if data have data types, which births always have.
        sent: Kafka key and value of each message, in order.
        rows: What the table must have after the messages: rows by device, metric and `is_historical`.
        done: Number of messages by type, and of values by data type.
    """

    rnd: random.Random
    typed: bool
    sent: list[tuple[bytes, bytes]] = field(default_factory=list)
    rows: dict[RowKey, dict[str, Any]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    _seq: int = 0
    _birth: int = 0
    _aliases: int = 0
    _metrics: dict[str, list[tuple[str, DataType, int | None]]] = field(default_factory=dict)

    def act(self) -> None:
        """Sends a message, or a death and the birth after it."""
        if not self._metrics:
            self._be_born()
            return
        device = self.rnd.choice(_DEVICES)
        match self.rnd.randrange(20):
            case 0:
                self._be_born()
            case 1:
                self._die(self._birth)
                self._birth = (self._birth + 1) % 256
                self._be_born()
            case 2:
                self._die((self._birth + 255) % 256)
            case 3 | 4:
                self._metrics[device] = self._choose_metrics()
                self._send("DBIRTH", device, DBirth)
            case 5 if device in self._metrics:
                del self._metrics[device]
                self.rows = {key: row for key, row in self.rows.items() if key[0] != device}
                self._encode("DDEATH", device, DDeath(START, self._seq))
            case number if number % 2 and device in self._metrics:
                self._send("DDATA", device, DData)
            case _:
                self._send("NDATA", "", NData)

    def _be_born(self) -> None:
        self._seq, self.rows = 0, {}
        self._metrics = {"": [("bdSeq", DataType.INT64, None), *self._choose_metrics()]}
        self._send("NBIRTH", "", NBirth)

    def _die(self, birth: int) -> None:
        """Sends the death that belongs to a birth. It removes all rows if this is the latest birth; otherwise none."""
        if birth == self._birth:
            self.rows = {}
        metric = Metric(START, "bdSeq", DataType.INT64, value=birth)
        self._encode("NDEATH", "", NDeath(START, metric), counts=False)

    def _choose_metrics(self) -> list[tuple[str, DataType, int | None]]:
        found = []
        for number in range(self.rnd.randint(1, 6)):
            self._aliases += 1
            alias = self.rnd.choice([None, self._aliases])
            name = self.rnd.choice([f"folder/m{number}", f"{number}", f'"{number}"'])
            found.append((name, self.rnd.choice(_TYPES), alias))
        return found

    def _send(self, kind: str, device: str, payload: type) -> None:
        """Sends a birth with all metrics of a device, or data with some."""
        is_birth = kind.endswith("BIRTH")
        if is_birth:
            self.rows = {key: row for key, row in self.rows.items() if key[0] != device}
        metrics = []
        for name, datatype, alias in self._metrics[device]:
            if not is_birth and (name == "bdSeq" or self.rnd.random() < 0.4):
                continue
            value = self._birth if name == "bdSeq" else self._choose_value(datatype)
            at, late = START + self.rnd.randrange(1000), not is_birth and self.rnd.random() < 0.1
            sent = name if is_birth or alias is None else None
            metrics.append(
                Metric(at, sent, datatype, value=value, alias=alias, is_historical=late, is_transient=value is None)
            )
            key = (device, f"alias {alias}" if alias is not None else f"name {name}", late)
            row = self.rows.setdefault(key, {"name": None, "datatype": None})
            row |= columns(value) | {"at": EPOCH + timedelta(milliseconds=at)}
            row |= {} if sent is None else {"name": name}
            row |= {"datatype": type_name(datatype)} if is_birth or self.typed else {}
            self.done[datatype.name] += 1
        self._encode(kind, device, payload(START, self._seq, tuple(metrics)))

    def _encode(self, kind: str, device: str, payload: Any, *, counts: bool = True) -> None:
        topic = "/".join(["spBv1.0", "plant", kind, "node", *([device] if device else [])])
        self.sent.append((topic.encode(), payload.encode(include_dtypes=self.typed)))
        self._seq = (self._seq + counts) % 256
        self.done[kind] += 1

    def _choose_value(self, datatype: DataType) -> Any:
        if self.rnd.random() < 0.1:
            return None
        name = datatype.name
        if name.endswith("_ARRAY"):
            element = DataType[name.removesuffix("_ARRAY")]
            least = 1 if element is DataType.STRING else 0  # this encoder gives an empty array the bytes of one text
            return tuple(self._choose_scalar(element) for _ in range(self.rnd.randint(least, 4)))
        return self._choose_scalar(datatype)

    def _choose_scalar(self, datatype: DataType) -> Any:
        rnd, name = self.rnd, datatype.name
        if name.startswith(("INT", "UINT")):
            bits = int(name.lstrip("UINT"))
            least = 0 if name.startswith("U") else -(2 ** (bits - 1))
            return rnd.choice([least, least + 2**bits - 1, max(least, -1), rnd.randrange(least, least + 2**bits)])
        match name:
            case "FLOAT" | "DOUBLE":
                number = rnd.choice([0.0, math.nan, math.inf, -math.inf, rnd.uniform(-1e30, 1e30)])
                return struct.unpack("<f", struct.pack("<f", number))[0] if name == "FLOAT" else number
            case "BOOLEAN":
                return rnd.random() < 0.5
            case "DATETIME":
                return EPOCH + timedelta(seconds=rnd.randrange(2**33))
            case "BYTES" | "FILE":
                return rnd.randbytes(rnd.randrange(5))
        return rnd.choice(["", "on", 'ä"\n', "7"])


def plain(value: Any) -> Any:
    """Returns a value as JSON has it."""
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(milliseconds=1)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def columns(given: Any) -> dict[str, Any]:
    """Returns the columns of a value: as JSON text, and by its kind. JSON has bytes, NaN and infinities as texts."""
    value = plain(given)
    is_number = type(value) in {int, float} and int(float(value)) == value
    return {
        "value": None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        "number": float(value) if is_number else None,
        "text": value if type(value) is str and type(given) is not bytes else None,
        "flag": value if type(value) is bool else None,
        "untyped": None,
    }


def type_name(datatype: DataType) -> str:
    """Returns the name of a data type as the specification writes it."""
    text = datatype.name.replace("_ARRAY", "Array")
    for upper, name in _NAMES.items():
        if text.startswith(upper):
            return text.replace(upper, name, 1)
    return text[0] + text[1:].replace(text[1:].removesuffix("Array"), text[1:].removesuffix("Array").lower())
