import asyncio
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from stillhouse.tools.network.guard import AddressRefused, Guard, certificates, guarded_client


def get(guard: Guard, url: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with guarded_client(guard, 5.0) as client:
            return await client.get(url)

    return asyncio.run(ask())


class Answers:
    """A resolver that gives another answer every time, as a rebinding DNS server does."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers: Iterator[list[str]] = iter(answers)
        self.num_asked = 0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.num_asked += 1
        return next(self._answers)


def test_a_redirect_to_a_private_host_is_refused(site) -> None:
    site.html("/secret", "secret")
    site.redirect("/start", site.url("/secret", "localhost"))
    with pytest.raises(AddressRefused, match="localhost"):
        get(Guard([site.host]), site.url("/start"))
    assert site.seen == ["/start"]


def test_a_redirect_to_an_allowed_host_is_followed_and_names_the_host(site) -> None:
    site.html("/end", "there")
    site.redirect("/start", site.url("/end", "localhost"))
    answer = get(Guard([site.host, "localhost"]), site.url("/start"))
    assert (answer.status_code, str(answer.url)) == (200, site.url("/end", "localhost"))
    assert answer.request.headers["host"] == f"localhost:{site.port}"


def test_the_connection_goes_to_the_address_that_was_checked(site) -> None:
    site.html("/", "hello")
    answers = Answers(["127.0.0.1"])
    assert get(Guard(["pinned.example"], answers), site.url("/", "pinned.example")).status_code == 200
    assert answers.num_asked == 1


def test_a_name_that_changes_its_address_after_the_first_answer_is_refused(site) -> None:
    site.html("/", "hello")
    site.redirect("/start", "http://rebinding.example/again")
    # The first host is allowed; the second one's answer is checked when it is asked for, and used at once.
    answers = Answers(["127.0.0.1"], ["127.0.0.1"])
    with pytest.raises(AddressRefused, match="rebinding"):
        get(Guard(["start.example"], answers), site.url("/start", "start.example"))


def test_the_next_checked_address_is_tried_where_one_takes_no_connection(site) -> None:
    site.html("/", "hello")
    answers = Answers(["127.0.0.99", "127.0.0.1"])
    assert get(Guard(["two.example"], answers), site.url("/", "two.example")).status_code == 200


def test_a_proxy_of_the_environment_is_not_used(site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.html("/", "hello")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert get(Guard([site.host]), site.url("/")).status_code == 200


@pytest.fixture
def tls_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield a TLS server on loopback with a certificate for shop.example, which is trusted for the test."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop.example")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("shop.example")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "shop.pem"
    pem.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.public_bytes(Encoding.PEM)
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    certificates.cache_clear()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.headers["Host"].encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        # A client that does not trust the certificate hangs up.
        def handle_error(self, *_: Any) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    certificates.cache_clear()


def test_the_certificate_must_be_of_the_host_and_not_of_the_address(tls_port: int) -> None:
    guard = Guard(["shop.example", "other.example"], Answers(["127.0.0.1"], ["127.0.0.1"]))
    assert get(guard, f"https://shop.example:{tls_port}/").text == f"shop.example:{tls_port}"
    with pytest.raises(httpx.ConnectError, match=r"certificate.*other\.example"):
        get(guard, f"https://other.example:{tls_port}/")
