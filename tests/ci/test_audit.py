"""The audit against a server on loopback that answers as OSV does."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

AUDIT = Path(__file__).resolve().parents[2] / ".ci" / "audit.py"
VULNERABLE = {
    "id": "GHSA-0000-test",
    "aliases": ["CVE-2026-0001"],
    "summary": "it leaks",
    "affected": [
        {
            "package": {"name": "leaky", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.0"}]}],
        }
    ],
}
Audit = Callable[..., subprocess.CompletedProcess[str]]


class Osv(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = {"vulns": [VULNERABLE]} if asked["package"]["name"] == "leaky" else {}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def osv() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Osv)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1/query"
    server.shutdown()
    server.server_close()


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    def run(service: str, pins: str, ignored: str = "") -> subprocess.CompletedProcess[str]:
        (tmp_path / "constraints.txt").write_text(pins, encoding="utf-8")
        (tmp_path / "ignored.txt").write_text(ignored, encoding="utf-8")
        named = ["--constraints", str(tmp_path / "constraints.txt"), "--ignored", str(tmp_path / "ignored.txt")]
        command = [sys.executable, str(AUDIT), "--service", service, *named]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_a_known_vulnerability_fails_the_check_with_its_remedy(audit: Audit, osv: str) -> None:
    result = audit(osv, "sound==1.0\nleaky==1.0\n")
    assert result.returncode == 1
    assert "leaky 1.0: CVE-2026-0001/GHSA-0000-test, mended in 2.0: it leaks" in result.stdout
    assert "2 packages checked, 1 findings" in result.stdout


def test_one_that_is_ignored_by_one_of_its_ids_and_with_a_reason_does_not(audit: Audit, osv: str) -> None:
    result = audit(osv, "leaky==1.0\n", "# why\nGHSA-0000-test we never call it\n")
    assert (result.returncode, result.stdout) == (
        0,
        "audit: 1 packages checked, 0 findings, 1 ids ignored by ignored.txt\n",
    )


def test_one_that_is_ignored_without_a_reason_is_refused(audit: Audit, osv: str) -> None:
    result = audit(osv, "leaky==1.0\n", "GHSA-0000-test\n")
    assert (result.returncode, "has no reason" in result.stderr) == (1, True)


def test_a_package_that_could_not_be_checked_is_no_success(audit: Audit, osv: str) -> None:
    result = audit(osv, "sound>=1.0\n")
    assert result.returncode == 1
    assert "0 findings" not in result.stdout


def test_a_service_that_cannot_be_reached_is_said_and_is_no_failure(audit: Audit) -> None:
    # Nothing listens on the port of `discard`.
    result = audit("http://127.0.0.1:9/v1/query", "leaky==1.0\n")
    assert result.returncode == 0
    assert "audit: NOT DONE, no package was checked" in result.stdout
    assert "packages checked, 0 findings" not in result.stdout
