"""A server for OAuth tokens on loopback. A broker checks the tokens with a file that has the public key."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT, SECRET = "lake-client", "lake-client-secret"


@contextmanager
def token_server(jwks: Path) -> Iterator[str]:
    """Runs the server during the block and yields its URL.

    Args:
        jwks: File for the public key, in the form that a broker reads.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    numbers = key.public_key().public_numbers()
    public = {"kty": "RSA", "kid": "k", "use": "sig", "alg": "RS256", "n": _number(numbers.n), "e": _number(numbers.e)}
    jwks.write_text(json.dumps({"keys": [public]}))

    def token() -> str:
        now = int(time.time())
        claims = {"sub": CLIENT, "iat": now, "exp": now + 3600, "scope": "kafka", "aud": "kafka", "iss": "tests"}
        head = ".".join(_coded(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "k"}, claims))
        return f"{head}.{_coded(key.sign(head.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
            known = given == f"{CLIENT}:{SECRET}"
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = {"access_token": token(), "token_type": "Bearer", "expires_in": 3600, "scope": "kafka"}
            body = json.dumps(answer if known else {"error": "invalid_client"}).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token"
        finally:
            server.shutdown()
            thread.join()


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _number(value: int) -> str:
    return _coded(value.to_bytes((value.bit_length() + 7) // 8, "big"))
