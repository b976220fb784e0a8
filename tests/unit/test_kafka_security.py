"""What `kafka.security` takes, what both clients are told of it, and what of it no text repeats."""

from __future__ import annotations

import json
import socket
import ssl
import threading

import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sessionlake.errors import ConfigError, KafkaAccessError
from sessionlake.kafka.clients import (
    build_java_client_options,
    build_librdkafka_client_config,
    build_spark_kafka_options,
    create_client_rejected_error,
)
from sessionlake.kafka.security import hide_secrets
from sessionlake.kafka.tls import find_tls_fault
from sessionlake.settings.model import KafkaSecurity, KafkaSettings, Settings, load_settings
from sessionlake.streaming.errors import convert_to_layer_error
from support.certificates import Authority

SCRAM = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": "lake", "password": 'p"w\\;'}
TOKEN = {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "token_url": "https://idp/token", "client_id": "c",
         "client_secret": "hush"}  # fmt: skip
AUTHORITY = Authority()
OWN = AUTHORITY.signed("client")


def settings(**security: str) -> Settings:
    return Settings(kafka=KafkaSettings(bootstrap_servers="a:1", security=KafkaSecurity(**security)))


def test_java_is_reported_a_login_with_its_quotes_escaped():
    options = build_java_client_options(settings(**SCRAM))
    assert options["security.protocol"] == "SASL_SSL"
    assert options["sasl.mechanism"] == "SCRAM-SHA-512"
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="lake" password="p\\"w\\\\;";'
    assert options["sasl.jaas.config"] == login


def test_on_databricks_a_login_is_by_the_class_that_its_runtime_has(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    options = build_spark_kafka_options(settings(**TOKEN))
    assert options["kafka.sasl.jaas.config"].startswith("kafkashaded.org.apache.kafka.common.security.oauthbearer.")
    assert options["kafka.sasl.login.callback.handler.class"].startswith("kafkashaded.")


def test_a_service_credential_takes_the_place_of_the_login_for_what_reads_messages():
    kafka = KafkaSettings(bootstrap_servers="a:1", security=KafkaSecurity(**SCRAM), service_credential="c")
    options = build_spark_kafka_options(Settings(kafka=kafka))
    assert options["databricks.serviceCredential"] == "c"
    assert [name for name in options if "sasl" in name or "protocol" in name] == []


@pytest.mark.parametrize(
    "security",
    [
        SCRAM | {"ca": AUTHORITY.pem},
        TOKEN | {"scope": "kafka"},
        {"protocol": "SSL", "certificate": OWN.certificate, "key": OWN.key, "ca": AUTHORITY.pem},
        {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "username": "u", "password": "p"},
    ],
    ids=["scram", "token", "certificate", "plain"],
)
def test_librdkafka_takes_every_way_in(security):
    AdminClient(build_librdkafka_client_config(settings(**security)) | {"log_level": 0})


def test_certificates_are_files_beside_the_configuration_or_their_text(tmp_path):
    (tmp_path / "ca.pem").write_text(AUTHORITY.pem)
    file = tmp_path / "sessionlake.yml"
    file.write_text("kafka: {security: {protocol: SSL, ca: ca.pem}}")
    assert build_java_client_options(load_settings(file))["ssl.truststore.certificates"] == AUTHORITY.pem
    file.write_text(json.dumps({"kafka": {"security": {"protocol": "SSL", "ca": AUTHORITY.pem}}}))
    assert build_java_client_options(load_settings(file))["ssl.truststore.certificates"] == AUTHORITY.pem


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        (
            {"protocol": "SASL_SSL", "mechanism": None},
            "SASL_SSL needs a login: set mechanism to one of PLAIN, SCRAM-SHA-256",
        ),
        ({"password": None}, "SCRAM-SHA-512 needs password"),
        ({"token_url": "https://a/b"}, "token_url: SCRAM-SHA-512 logs in with username and password"),
        ({"protocol": "SSL"}, "mechanism and username and password: SSL has no login"),
        ({"protocol": "SASL_PLAINTEXT", "ca": "x"}, "ca: SASL_PLAINTEXT uses no certificates"),
        ({"certificate": "x"}, "only one of certificate and key is set"),
        ({"mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs token_url and client_id and client_secret"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_does(change, expected_text):
    with pytest.raises(ValueError, match=expected_text):
        KafkaSecurity(**{name: value for name, value in (SCRAM | change).items() if value is not None})


def test_options_do_not_say_again_what_security_says(tmp_path):
    file = tmp_path / "sessionlake.yml"
    file.write_text(
        "kafka: {options: {sasl.jaas.config: secret words}, security: {protocol: SASL_SSL, mechanism: PLAIN, "
        "username: u, password: hush}}"
    )
    with pytest.raises(ConfigError, match=r"options has sasl\.jaas\.config, which kafka.security sets too") as caught:
        load_settings(file)
    assert "secret words" not in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"protocol": "SASL_SSLL"}, {"password": ["hush"]}, {"passwrd": "hush"}])
def test_no_error_of_the_configuration_repeats_what_security_holds(wrong, tmp_path):
    file = tmp_path / "sessionlake.yml"
    file.write_text(f"kafka: {{security: {SCRAM | {'password': 'hush'} | wrong}}}")
    with pytest.raises(ConfigError, match=r"kafka\.security") as caught:
        load_settings(file)
    assert "hush" not in str(caught.value)


def test_a_key_that_java_cannot_read_is_refused_with_the_way_out():
    old = serialization.PrivateFormat.TraditionalOpenSSL
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, old, serialization.NoEncryption()
    )
    with pytest.raises(ConfigError, match=r"not a private key in the form PKCS#8.*`openssl pkcs8 -topk8") as caught:
        build_java_client_options(settings(protocol="SSL", certificate=OWN.certificate, key=key.decode()))
    assert key.decode() not in str(caught.value)


def test_a_file_that_is_missing_or_no_pem_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"kafka\.security\.ca: .*none\.pem cannot be read \(No such file"):
        build_java_client_options(settings(protocol="SSL", ca=str(tmp_path / "none.pem")))
    (tmp_path / "ca.der").write_bytes(b"0abc")
    with pytest.raises(ConfigError, match=r"kafka\.security\.ca: .*ca\.der is not a PEM file"):
        build_java_client_options(settings(protocol="SSL", ca=str(tmp_path / "ca.der")))


def test_what_a_client_says_is_reported_without_the_secrets_it_was_given():
    own = settings(**TOKEN)
    assert hide_secrets(own, "hush was refused") == "(hidden) was refused"
    assert "hush" not in str(create_client_rejected_error(own, "hush was refused"))
    by_options = Settings(kafka=KafkaSettings(options={"sasl.jaas.config": "X password=hush;"}))
    assert "hush" not in hide_secrets(by_options, "bad value X password=hush; for sasl.jaas.config")


def test_a_secret_is_hidden_however_a_client_was_reported_it():
    own = settings(**SCRAM)
    login = build_java_client_options(own)["sasl.jaas.config"]
    assert 'username="lake" password="(hidden)"' in hide_secrets(own, login)
    by_options = Settings(kafka=KafkaSettings(options={"sasl.jaas.config": login}))
    assert build_librdkafka_client_config(by_options)["sasl.password"] == SCRAM["password"]
    assert hide_secrets(by_options, f"{SCRAM['password']} was refused") == "(hidden) was refused"


@pytest.mark.parametrize("package", ["org.apache.kafka", "kafkashaded.org.apache.kafka"])
def test_a_stream_that_kafka_refuses_is_reported_what_to_correct(package):
    said = f"{package}.common.errors.SaslAuthenticationException: Authentication failed"
    error = convert_to_layer_error(passed_on(said), "bronze", "/none")
    assert isinstance(error, KafkaAccessError)
    assert "Correct kafka.security or kafka.options" in str(error)


def passed_on(text: str) -> Exception:
    from pyspark.errors import StreamingQueryException

    return StreamingQueryException(f"org.apache.spark.SparkException: Job failed\nCaused by: {text}")


def test_a_server_that_breaks_off_speaks_no_tls():
    def hang_up(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        connection.recv(1)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=hang_up, args=(listening,))
        thread.start()
        fault = find_tls_fault("127.0.0.1", listening.getsockname()[1], {"security.protocol": "SSL"}, 2.0)
        thread.join()
    assert fault is not None
    assert fault[0] == "plain"


@pytest.mark.parametrize(("host", "fault"), [("127.0.0.1", None), ("localhost", "other_host")])
def test_a_certificate_is_for_the_hosts_that_it_names(host, fault, tmp_path):
    own = AUTHORITY.signed("server", "127.0.0.1")
    (tmp_path / "own.pem").write_text(own.certificate + own.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "own.pem")

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        try:
            context.wrap_socket(connection, server_side=True).close()
        except OSError:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        options = {"security.protocol": "SSL", "ssl.truststore.certificates": AUTHORITY.pem}
        found = find_tls_fault(host, listening.getsockname()[1], options, 2.0)
        thread.join()
    assert (found and found[0]) == fault
