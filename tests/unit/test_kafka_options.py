from __future__ import annotations

import socket
import time

import pytest
from pydantic import ValidationError

from sessionlake.errors import BrokerError, ConfigError
from sessionlake.kafka.clients import (
    build_java_client_options,
    build_librdkafka_client_config,
    build_librdkafka_consumer_config,
    build_spark_kafka_options,
    build_spark_source_options,
    require_reachable_broker,
)
from sessionlake.local.probe import is_loopback, parse_bootstrap_servers
from sessionlake.settings.model import CaptureSettings, KafkaSettings, Settings


def _settings(servers: str = "127.0.0.1:9092", **options: str) -> Settings:
    dotted = {key.replace("_", "."): value for key, value in options.items()}
    return Settings(kafka=KafkaSettings(bootstrap_servers=servers, options=dotted))


def test_spark_options_carry_the_prefix_and_every_option_of_the_configuration():
    options = build_spark_kafka_options(_settings("a:1", security_protocol="SASL_SSL", max_poll_records="7"))
    assert options["kafka.bootstrap.servers"] == "a:1"
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.max.poll.records"] == "7"


def test_a_service_credential_takes_the_place_of_the_login_but_where_topics_are_asked_for():
    kafka = KafkaSettings(service_credential="mine", options={"sasl.mechanism": "PLAIN", "max.poll.records": "7"})
    options = build_spark_kafka_options(Settings(kafka=kafka))
    assert options["databricks.serviceCredential"] == "mine"
    assert (options["kafka.max.poll.records"], "kafka.sasl.mechanism" in options) == ("7", False)
    assert build_java_client_options(Settings(kafka=kafka))["sasl.mechanism"] == "PLAIN"


def test_new_topics_are_looked_for_as_often_as_bronze_says_unless_an_option_says_otherwise():
    assert build_spark_kafka_options(_settings())["kafka.metadata.max.age.ms"] == "3000"
    assert build_spark_kafka_options(_settings(metadata_max_age_ms="9"))["kafka.metadata.max.age.ms"] == "9"


def test_an_option_cannot_take_the_place_of_bootstrap_servers():
    assert build_spark_kafka_options(_settings("a:1", bootstrap_servers="b:2"))["kafka.bootstrap.servers"] == "a:1"


def test_librdkafka_gets_no_consumer_tuning_meant_for_spark():
    assert build_librdkafka_client_config(_settings("a:1", max_poll_records="7")) == {"bootstrap.servers": "a:1"}


def test_user_and_password_are_read_out_of_a_jaas_configuration():
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p\\"= w";'
    config = build_librdkafka_client_config(
        _settings(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=jaas),
    )
    assert config["sasl.username"] == "u"
    assert config["sasl.password"] == 'p"= w'
    assert config["sasl.mechanism"] == "PLAIN"
    assert "sasl.jaas.config" not in config


def test_java_s_empty_endpoint_identification_is_librdkafka_s_none():
    config = build_librdkafka_client_config(_settings(ssl_endpoint_identification_algorithm=""))
    assert config["ssl.endpoint.identification.algorithm"] == "none"


def test_a_pem_trust_store_becomes_the_ca_location():
    config = build_librdkafka_client_config(_settings(ssl_truststore_location="/ca.pem", ssl_truststore_type="PEM"))
    assert config["ssl.ca.location"] == "/ca.pem"


def test_a_java_trust_store_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"ssl.truststore.location is of type JKS.*Convert the store to PEM"):
        build_librdkafka_client_config(_settings(ssl_truststore_location="/trust.jks"))


def test_librdkafka_accepts_every_translated_property():
    from confluent_kafka.admin import AdminClient

    options = {
        "client.id": "x",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'X required username="u" password="p";',
        "ssl.endpoint.identification.algorithm": "",
    }
    AdminClient(build_librdkafka_client_config(Settings(kafka=KafkaSettings(options=options))) | {"log_level": 0})


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("127.0.0.1:9092", [("127.0.0.1", 9092)]),
        ("a.example:1, b:65535", [("a.example", 1), ("b", 65535)]),
        ("PLAINTEXT://a:1", [("a", 1)]),
        ("[::1]:9092", [("::1", 9092)]),
    ],
)
def test_servers_are_taken_apart(servers, expected):
    assert parse_bootstrap_servers(_settings(servers)) == expected


@pytest.mark.parametrize("servers", ["localhost", "a:0", "a:65536", "a:x", "a:1,,b:2", "::1:9092", ":9092"])
def test_what_is_not_host_and_port_is_named(servers):
    with pytest.raises(ConfigError, match=r"kafka.bootstrap_servers is .*is not an address HOST:PORT"):
        parse_bootstrap_servers(_settings(servers))


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.0.0.1", False), ("a", False)],
)
def test_loopback_is_reported_without_a_name_server(host, expected):
    assert is_loopback(host) is expected


def test_no_broker_on_this_machine_fails_at_once_and_names_the_command(free_port):
    begun = time.monotonic()
    with pytest.raises(BrokerError, match=r"refused.*`sessionlake broker up`, or correct kafka.bootstrap_servers"):
        require_reachable_broker(_settings(f"127.0.0.1:{free_port}"))
    assert time.monotonic() - begun < 2


def test_one_reachable_server_among_several_is_enough_to_go_on(free_port, monkeypatch):
    monkeypatch.setattr("sessionlake.kafka.clients.request_broker_metadata", lambda _config, _seconds: None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        require_reachable_broker(_settings(f"127.0.0.1:{free_port},127.0.0.1:{listening.getsockname()[1]}"))


def test_a_port_that_listens_but_speaks_no_kafka_is_no_broker(monkeypatch):
    monkeypatch.setattr("sessionlake.kafka.clients._METADATA_SECONDS", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        pytest.raises(BrokerError, match=r"a program listens at .* does not answer as Kafka does"),
    ):
        require_reachable_broker(_settings(f"127.0.0.1:{listening.getsockname()[1]}"))


def test_a_host_that_does_not_exist_is_named():
    with pytest.raises(
        BrokerError, match=r"answers at no-such-host\.invalid:9092 .*Start the broker, let the network reach it"
    ):
        require_reachable_broker(_settings("no-such-host.invalid:9092"))


def test_only_committed_messages_are_read_by_either_client() -> None:
    settings = _settings(isolation_level="read_committed")
    assert build_spark_source_options(settings)["kafka.isolation.level"] == "read_committed"
    assert build_librdkafka_consumer_config(settings, "test")["isolation.level"] == "read_committed"
    with pytest.raises(ValidationError, match=r"isolation.level: read_uncommitted.*aborted transactions"):
        _settings(isolation_level="read_uncommitted")


@pytest.mark.parametrize(
    ("message_mib", "polled_mib", "records"),
    [(10, 320, 32), (10, 80, 8), (10, 5000, 500), (1, 5000, 500), (1024, 80, 1)],
)
def test_a_poll_has_so_many_records_that_the_largest_fit(message_mib: int, polled_mib: int, records: int) -> None:
    settings = Settings(capture=CaptureSettings(max_message_bytes=message_mib << 20))
    assert build_spark_source_options(settings, polled_mib << 20)["kafka.max.poll.records"] == str(records)
