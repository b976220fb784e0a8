"""A broker with TLS and logins switched on: each client gets in as configured, and who does not is told why."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.delta.lake import Lake
from sessionlake.errors import BrokerError, KafkaAccessError, SessionlakeError
from sessionlake.history.status import read_kafka_end_offsets
from sessionlake.kafka.admin import KafkaAdmin
from sessionlake.kafka.clients import (
    build_librdkafka_client_config,
    build_spark_kafka_options,
    require_reachable_broker,
)
from sessionlake.local.signals import StopFlag
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.settings.model import BronzeSettings, KafkaSecurity, KafkaSettings, Settings
from support.certificates import Authority
from support.lakes import rows_of
from support.secure_broker import FRAGMENT, SecureBroker, secure_broker
from support.token_server import SECRET

TOPIC = "capture.secured"
WRONG = "wrong-word"
Way = Callable[[SecureBroker], KafkaSettings]
WAYS: dict[str, Way] = {
    "SCRAM over TLS": lambda broker: broker.kafka(),
    "a certificate": lambda broker: broker.kafka("CERTIFICATE"),
    "a token": lambda broker: broker.by_token(),
}
way_in = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secured")) as broker:
        producer = Producer(build_librdkafka_client_config(Settings(kafka=broker.kafka())))
        value = {"type": "snapshot", "seq": 0, "ts": 1, "rows": [{"id": "r0", "price": 1.0}]}
        producer.produce(TOPIC, json.dumps(value).encode(), b"s", 0)
        assert producer.flush(30) == 0
        yield broker


def foreign(broker: SecureBroker) -> KafkaSettings:
    own = Authority().signed("client")
    return broker.kafka("CERTIFICATE", certificate=own.certificate, key=own.key)


def without_tls(broker: SecureBroker) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=f"127.0.0.1:{broker.ports['LOGIN']}")


def tls_to_plain(broker: SecureBroker) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=f"127.0.0.1:{broker.ports['PLAIN']}", security=broker.kafka().security)


REFUSED: dict[str, tuple[Way, type[SessionlakeError], str]] = {
    "a wrong password": (
        lambda broker: broker.kafka(password=WRONG),
        KafkaAccessError,
        r"invalid credentials.*\. Correct username and password in kafka\.security",
    ),
    "a wrong client secret": (
        lambda broker: broker.by_token(client_secret=WRONG),
        KafkaAccessError,
        r"invalid_client.*\. Correct token_url, client_id and client_secret in kafka\.security",
    ),
    "a broker of an authority that is not trusted": (
        lambda broker: broker.kafka(ca=Authority("another").pem),
        KafkaAccessError,
        r"does not trust \(.*Add the authority that signed the certificate to kafka\.security\.ca",
    ),
    "a broker of an authority that nobody knows": (
        lambda broker: broker.kafka(ca=None),
        KafkaAccessError,
        r"This client does not trust the server's certificate\. Correct kafka\.security\.ca",
    ),
    "a broker of another host": (
        lambda broker: broker.kafka("OTHER_HOST"),
        KafkaAccessError,
        r"for another host name \(.*127\.0\.0\.1.*Set kafka\.bootstrap_servers",
    ),
    "a certificate that the broker does not know": (
        foreign,
        KafkaAccessError,
        r"requires a client certificate.*Correct certificate and key in kafka\.security",
    ),
    "no TLS where there is": (
        without_tls,
        BrokerError,
        r"requires TLS, but kafka\.security\.protocol does not",
    ),
    "TLS where there is none": (
        tls_to_plain,
        BrokerError,
        r"does not use TLS .*kafka\.security\.protocol is SASL_SSL",
    ),
}


@way_in
def test_python_s_client_gets_in(way: Way, secured: SecureBroker):
    settings = Settings(kafka=way(secured))
    require_reachable_broker(settings)
    assert (read_kafka_end_offsets(settings) or {})[TOPIC, 0] == 1


@way_in
def test_spark_reads_and_asks(way: Way, secured: SecureBroker, spark):
    settings = Settings(kafka=way(secured))
    with closing(KafkaAdmin(spark, settings)) as admin:
        assert TOPIC in admin.read_topic_ids()
    options = build_spark_kafka_options(settings)
    frame = spark.read.format("kafka").options(**options).option("subscribe", TOPIC).load()
    assert [row["partition"] for row in frame.select("partition").collect()] == [0]
    plans = str(frame._jdf.queryExecution().toString()) + str(frame._jdf.queryExecution().logical().toJSON())
    secrets = (options.get("kafka.ssl.keystore.key", "")[30:60], FRAGMENT, SECRET)
    assert [secret for secret in secrets if secret and secret in plans] == []


@pytest.mark.parametrize(("way", "kind", "expected_text"), REFUSED.values(), ids=REFUSED)
def test_who_does_not_get_in_is_reported_server_and_setting(
    way: Way, kind, expected_text: str, secured: SecureBroker, monkeypatch
):
    monkeypatch.setattr("sessionlake.kafka.clients._METADATA_SECONDS", 2.0)
    kafka = way(secured)
    with pytest.raises(kind, match=expected_text) as caught:
        require_reachable_broker(Settings(kafka=kafka))
    assert kafka.bootstrap_servers in str(caught.value)
    assert WRONG not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        ({"password": WRONG}, r"Authentication failed.*Correct username and password in kafka\.security"),
        ({"ca": None}, r"certification path.*Correct kafka\.security\.ca"),
    ],
    ids=["a wrong password", "a broker that is not trusted"],
)
def test_spark_s_client_that_does_not_get_in_is_reported_the_same(
    change, expected_text: str, secured: SecureBroker, spark
):
    with (
        closing(KafkaAdmin(spark, Settings(kafka=secured.kafka(**change)))) as admin,
        pytest.raises(KafkaAccessError, match=expected_text),
    ):
        admin.read_topic_ids()


def test_bronze_captures_over_tls_and_leaves_no_secret_behind(secured: SecureBroker, spark, location, tmp_path_factory):
    settings = Settings(**location, kafka=secured.kafka(), bronze=BronzeSettings(topic_refresh="500ms"))
    with StopFlag() as stop:
        assert run_once(spark, settings, Layer.BRONZE, stop)
    assert [row["key"] for row in rows_of(spark, Lake(settings), "bronze.messages")] == [b"s"]
    folders = [tmp_path_factory.getbasetemp().rglob(kind) for kind in ("*.log", "*.out")]
    written = [file for files in (settings.home.rglob("*"), *folders) for file in files if file.is_file()]
    assert len(written) > 10
    assert [file for file in written if FRAGMENT.encode() in file.read_bytes()] == []
    assert FRAGMENT not in repr(settings) + settings.model_dump_json()


def test_the_command_line_ends_with_the_code_of_a_broker_s_error(secured: SecureBroker, tmp_path: Path):
    security = secured.kafka().security
    assert isinstance(security, KafkaSecurity)
    (tmp_path / "ca.pem").write_text(security.ca or "")
    file = tmp_path / "sessionlake.yml"
    file.write_text(
        f"kafka: {{bootstrap_servers: '127.0.0.1:{secured.ports['LOGIN']}', security: {{protocol: SASL_SSL, "
        "mechanism: SCRAM-SHA-512, username: lake, ca: ca.pem}}"
    )
    environment = {"SESSIONLAKE_KAFKA__SECURITY__PASSWORD": WRONG, "SESSIONLAKE_HOME": str(tmp_path / "home")}
    done = CliRunner().invoke(cli.app, ["run", "bronze", "--once", "--config", str(file)], env=environment)
    assert done.exit_code == 1
    assert "Correct username and password in kafka.security" in done.stderr
    assert WRONG not in done.stderr
