from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from sessionlake.errors import ConfigError, UsageError
from sessionlake.history.content import decode_first_message_part
from sessionlake.ledger.entries import hash_settings_of_layers
from sessionlake.operations.pipeline import Layer, require_runnable_settings
from sessionlake.settings.model import Settings, load_settings
from sessionlake_lab.simulate.run import run_simulation
from support.payloads import avro, avro_schema
from support.streams import COLUMNS


def load(tmp_path, **capture: object) -> Settings:
    (tmp_path / "c.yml").write_text(json.dumps({"capture": capture}))
    return load_settings(tmp_path / "c.yml")


@pytest.mark.parametrize(
    ("capture", "text"),
    [
        ({"format": "xml"}, r"capture.format = 'xml': .*'json', 'avro' or 'protobuf'"),
        ({"payload": {"schema_file": "a"}}, "is for format avro or protobuf"),
        ({"format": "avro"}, "needs one of schema_file, schema_files and registry_url, found none"),
        (
            {"format": "avro", "payload": {"schema_file": "a", "registry_url": "http://a"}},
            "found schema_file and registry_url",
        ),
        ({"format": "avro", "payload": {"registry_url": "http://a", "wire_header": False}}, "leave out wire_header"),
        (
            {"format": "avro", "payload": {"schema_files": {"1": "a"}, "wire_header": False}},
            "schema_files needs the schema id",
        ),
        ({"format": "avro", "payload": {"schema_file": "a", "message": "m"}}, "message names a Protobuf type"),
        ({"format": "protobuf", "payload": {"schema_file": "a"}}, "message must name the Protobuf type"),
        ({"format": "avro", "payload": {"schema_file": "a", "registry_auth": "t"}}, "registry_auth needs registry_url"),
        ({"format": "avro", "payload": {"registry_url": "ftp://a"}}, "https://HOST:PORT"),
        ({"format": "avro", "payload": {"registry_url": "http://u:pw@a"}}, "write them in registry_auth"),
    ],
)
def test_what_does_not_go_together_is_said(tmp_path, capture, text):
    with pytest.raises(ConfigError, match=text):
        load(tmp_path, **capture)


def test_no_error_and_no_fingerprint_holds_a_credential(tmp_path):
    wrong = [
        {"format": "avro", "payload": {"schema_file": "a", "registry_auth": "hush"}},
        {"format": "avro", "payload": {"registry_url": "http://u:hush@a"}},
        {"format": "avro", "payload": {"registry_url": "http://a", "registry_auth": ["hush"]}},
        {"format": "json", "payload": {"registry_url": "http://a", "registry_auth": "hush"}},
    ]
    for capture in wrong:
        with pytest.raises(ConfigError) as error:
            load(tmp_path, **capture)
        assert "hush" not in str(error.value)
    found = [
        load(tmp_path, format="avro", payload={"registry_url": "http://a", "registry_auth": auth})
        for auth in ("hush", "other")
    ]
    assert hash_settings_of_layers(found[0]) == hash_settings_of_layers(found[1])
    assert "hush" not in repr(found[0]) + found[0].model_dump_json()


def test_a_wrong_kafka_option_is_not_repeated_in_its_error(tmp_path):
    (tmp_path / "c.yml").write_text("kafka: {options: 'sasl.jaas.config=password=\"hush\"'}")
    with pytest.raises(ConfigError, match=r"kafka\.options: ") as error:
        load_settings(tmp_path / "c.yml")
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(("payload", "header"), [({}, True), ({"wire_header": True}, True)])
def test_a_registry_means_a_wire_header(tmp_path, payload, header):
    found = load(tmp_path, format="avro", payload={"registry_url": "http://a/x/", **payload}).capture.payload
    assert (found.has_wire_header, found.registry_url) == (header, "http://a/x")


def test_the_environment_names_every_key(monkeypatch):
    monkeypatch.setenv("SESSIONLAKE_CAPTURE__FORMAT", "avro")
    monkeypatch.setenv("SESSIONLAKE_CAPTURE__PAYLOAD__REGISTRY_URL", "https://registry:8081")
    monkeypatch.setenv("SESSIONLAKE_CAPTURE__PAYLOAD__REGISTRY_AUTH", "u:p")
    found = load_settings().capture.payload
    assert found.registry_auth.get_secret_value() == "u:p"


def test_a_schema_file_that_is_missing_is_named_before_anything_starts(tmp_path):
    found = load(tmp_path, format="avro", payload={"schema_file": str(tmp_path / "none.avsc")})
    with pytest.raises(ConfigError, match=r"schema file .*none\.avsc cannot be read: No such file"):
        require_runnable_settings(found.model_copy(update={"home": tmp_path / "home"}), Layer.SILVER)


def test_the_simulator_writes_json_and_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"the simulator writes JSON, but capture\.format is avro"):
        run_simulation(load(tmp_path, format="avro", payload={"registry_url": "http://a"}))


def test_tracing_a_message_reads_it_in_its_own_format(tmp_path):
    (tmp_path / "a.avsc").write_text(json.dumps(avro_schema()))
    found = load(tmp_path, format="avro", columns=COLUMNS, payload={"schema_file": str(tmp_path / "a.avsc")})
    value = avro({"type": "update", "seq": 7, "ts": 5, "rows": [{"id": "a", "qty": 1}]})
    now = datetime.now(UTC)
    row = {"topic": "t", "partition": 0, "offset": 1, "timestamp": now, "key": b"s", "value": value, "ingested_at": now}
    content = decode_first_message_part(row | {"headers": None}, found)
    assert (content.type, content.seq, content.ts, content.changes) == ("update", 7, 5, 1)
