"""A broker with TLS and logins: one process with a listener for each kind of connection."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sessionlake.local import broker_config
from sessionlake.local.broker import _build_broker_java_command
from sessionlake.local.probe import does_broker_answer
from sessionlake.settings.model import KafkaSecurity, KafkaSettings
from support.certificates import Authority, Identity
from support.token_server import CLIENT, SECRET, token_server

USER, PASSWORD = "lake", 'pass"word \\ of Zq7x41;'
FRAGMENT = "Zq7x41"
"""Part of the password that must not appear in any text, however it is quoted."""
_LISTENERS = {"PLAIN": "PLAINTEXT", "LOGIN": "SASL_SSL", "CERTIFICATE": "SSL", "OTHER_HOST": "SASL_SSL"}
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_SECONDS = 60


@dataclass(frozen=True)
class SecureBroker:
    """A running broker.

    Attributes:
        ports: Port of each listener.
        authority: Authority that signed the broker's and the client's certificates.
        client: Certificate of a client.
        token_url: URL of the token server.
    """

    ports: dict[str, int]
    authority: Authority
    client: Identity
    token_url: str

    def kafka(self, listener: str = "LOGIN", **security: str) -> KafkaSettings:
        """Returns settings for a successful connection. Given values replace them, and None removes one."""
        ways = {
            "PLAIN": {"protocol": "PLAINTEXT"},
            "CERTIFICATE": {"protocol": "SSL", "certificate": self.client.certificate, "key": self.client.key},
        }
        scram = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": USER, "password": PASSWORD}
        own = ways.get(listener, scram) | ({} if listener == "PLAIN" else {"ca": self.authority.pem}) | security
        given = {name: value for name, value in own.items() if value is not None}
        servers = f"127.0.0.1:{self.ports[listener]}"
        return KafkaSettings(bootstrap_servers=servers, security=KafkaSecurity(**given))

    def by_token(self, **security: str) -> KafkaSettings:
        own = {"token_url": self.token_url, "client_id": CLIENT, "client_secret": SECRET, "scope": "kafka"}
        return self.kafka(mechanism="OAUTHBEARER", username=None, password=None, **(own | security))


@contextmanager
def secure_broker(folder: Path) -> Iterator[SecureBroker]:
    """Runs a broker with its data in the folder during the block."""
    authority = Authority()
    with ExitStack() as stack:
        jwks = folder / "jwks.json"
        url = stack.enter_context(token_server(jwks))
        ports = {name: broker_config.find_free_port() for name in (*_LISTENERS, "CONTROLLER")}
        config = folder / "server.properties"
        config.write_text(_properties(folder, ports, authority, jwks))
        java = _build_broker_java_command(folder)
        java[1:1] = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks.as_uri()}", "-Xshare:auto"]
        stack.enter_context(_running(folder, java, config))
        _await(folder, ports["PLAIN"])
        yield SecureBroker(ports, authority, authority.signed("client"), url)


@contextmanager
def _running(folder: Path, java: list[str], config: Path) -> Iterator[None]:
    scram = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
    form = ["kafka.tools.StorageTool", "format", "--cluster-id", "L" + "x" * 21, "--config", str(config)]
    with (folder / "out").open("wb") as out:
        subprocess.run([*java, *form, "--add-scram", scram], stdout=out, stderr=out, check=True, cwd=folder)
        process = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=out, stderr=out, cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait(_SECONDS)


def _properties(folder: Path, ports: dict[str, int], authority: Authority, jwks: Path) -> str:
    here, elsewhere = authority.signed("here", "127.0.0.1", "localhost"), authority.signed("there", "kafka.example")
    listeners = ",".join(f"{name}://127.0.0.1:{ports[name]}" for name in _LISTENERS)
    own = {
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in _LISTENERS.items()) + ",CONTROLLER:PLAINTEXT",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{ports['CONTROLLER']}",
        "advertised.listeners": listeners,
        "inter.broker.listener.name": "PLAIN",
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "log.dirs": (folder / "data").as_posix(),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": _one_line(authority.pem),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "listener.name.certificate.ssl.client.auth": "required",
    }
    for listener, identity in (("login", here), ("certificate", here), ("other_host", elsewhere)):
        prefix = f"listener.name.{listener}"
        own |= {
            f"{prefix}.ssl.keystore.type": "PEM",
            f"{prefix}.ssl.keystore.certificate.chain": _one_line(identity.certificate),
            f"{prefix}.ssl.keystore.key": _one_line(identity.key),
        }
        if listener != "certificate":
            oauth = f"{prefix}.oauthbearer"
            own |= {
                f"{prefix}.scram-sha-512.sasl.jaas.config": (
                    "org.apache.kafka.common.security.scram.ScramLoginModule required;"
                ),
                f"{oauth}.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
                f"{oauth}.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
            }
    return "".join(f"{key}={value}\n" for key, value in (broker_config._PROPERTIES | own).items())


def _one_line(pem: str) -> str:
    return pem.strip().replace("\n", "\\n")


def _await(folder: Path, port: int) -> None:
    end = time.monotonic() + _SECONDS
    while not does_broker_answer({"bootstrap.servers": f"127.0.0.1:{port}"}, 2.0):
        output = (folder / "out").read_text() + (folder / "broker.log").read_text()
        assert time.monotonic() < end, output[-3000:]
