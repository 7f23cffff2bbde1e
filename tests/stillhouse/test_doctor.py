import http.server
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stillhouse.config import parse_config
from stillhouse.doctor import examine
from stillhouse.inspection import Finding

Examined = Callable[..., dict[str, Finding]]
KEY = "DOCTOR_TEST_KEY"


class _Guarded(http.server.BaseHTTPRequestHandler):
    """Answers GET to whoever logs in."""

    def do_GET(self) -> None:
        login = f"Basic {b64encode(b'admin:right').decode()}"
        self.send_response(200 if self.headers.get("Authorization") == login else 401)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Guarded) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def endpoint(guarded: str) -> str:
    return f"{guarded}/v1"


@pytest.fixture
def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examined:
    """The findings by name for a config with these changes, where of all keys and servers only these are set."""

    def run(*overrides: str, store: Path = tmp_path / "store", **environment: str) -> dict[str, Finding]:
        for name in (KEY, "JUDGE_KEY", "PREFECT_API_URL"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        config = parse_config({"runtime": {"store": str(store), "api_key_env": KEY}}, "test", overrides)
        return {finding.name: finding for finding in examine(config)}

    return run


def test_the_embedded_default_needs_neither_key_nor_endpoint(examined: Examined) -> None:
    findings = examined()
    assert not [finding for finding in findings.values() if finding.ok is False]
    assert findings["API key"].ok is None
    assert findings["teacher"].detail.startswith("embedded:teacher (teacher@")
    assert {"prefect", "torch", "device", "store", "student"} <= findings.keys()


def test_the_price_of_each_model_that_is_sold_is_shown_with_its_source_and_missed_where_it_is_capped(
    examined: Examined, endpoint: str, tmp_path: Path
) -> None:
    sold, keys = (f"teacher.base_url={endpoint}", "teacher.model=m"), {KEY: "right"}
    assert examined(*sold, **keys)["teacher price"].ok is None
    capped = examined(*sold, "budget.max_usd=1", **keys)["teacher price"]
    assert (capped.ok, "teacher.usd_per_million_tokens" in capped.detail) == (False, True)
    prices = tmp_path / "prices.yaml"
    prices.write_text("m: {prompt: 1, completion: 2}")
    found = examined(*sold, f"teacher.prices_file={prices}", **keys)["teacher price"]
    assert found.ok is True
    assert found.detail.startswith("$1 prompt, $2 completion per million tokens: prices.yaml of 20")
    assert "0 days old" in found.detail


def test_a_key_that_is_needed_and_absent_is_a_failure(examined: Examined, endpoint: str) -> None:
    finding = examined(f"teacher.base_url={endpoint}")["API key"]
    assert finding.ok is False
    assert f"the environment variable {KEY} is not set" in finding.detail


def test_a_judge_has_a_key_of_its_own(examined: Examined, endpoint: str) -> None:
    section = f"{{enabled: true, model: {{model: m, base_url: '{endpoint}'}}}}"
    overrides = (f"dataset.judge={section}", "runtime.judge_api_key_env=JUDGE_KEY")
    findings = examined(*overrides, JUDGE_KEY="right")
    keys = {name: finding.ok for name, finding in findings.items() if name.startswith("API key")}
    assert keys == {f"API key {KEY}": None, "API key JUDGE_KEY": True}
    assert examined(*overrides)["API key JUDGE_KEY"].ok is False
    assert findings["teacher"].detail.startswith("embedded:teacher")


def test_a_key_that_several_models_share_is_looked_for_once(examined: Examined, endpoint: str) -> None:
    section = f"{{enabled: true, model: {{model: m, base_url: '{endpoint}'}}}}"
    findings = examined(f"dataset.judge={section}", **{KEY: "right"})
    assert findings["API key"].detail == f"{KEY} is set: found in the environment"


def test_what_is_not_there_or_cannot_be_written_is_a_failure(examined: Examined, tmp_path: Path) -> None:
    absent, file = tmp_path / "absent", tmp_path / "file"
    file.write_text("a file stands where the folder should be")
    overrides = ["dataset.judge.enabled=true", f"dataset.judge.model.model={absent}", f"student.model={absent}"]
    findings = examined(*overrides, store=file)
    assert (findings["judge"].ok, findings["student"].ok, findings["store"].ok) == (False, False, False)
    assert "is not a folder" in findings["student"].detail
    assert str(file) in findings["store"].detail


def test_a_server_of_prefect_or_mlflow_that_does_not_answer_is_a_failure(examined: Examined) -> None:
    findings = examined("tracking.uri=http://127.0.0.1:9", PREFECT_API_URL="http://127.0.0.1:9/api")
    assert (findings["Prefect"].ok, findings["MLflow"].ok) == (False, False)
    assert "http://127.0.0.1:9/api/admin/version" in findings["Prefect"].detail


@pytest.mark.parametrize(("password", "ok"), [("right", True), ("wrong", False)])
def test_servers_that_ask_for_a_login_are_given_the_environments(
    examined: Examined, guarded: str, password: str, ok: bool
) -> None:
    mlflow = {"MLFLOW_TRACKING_URI": guarded, "MLFLOW_TRACKING_USERNAME": "admin", "MLFLOW_TRACKING_PASSWORD": password}
    prefect = {"PREFECT_API_URL": f"{guarded}/api", "PREFECT_API_AUTH_STRING": f"admin:{password}"}
    findings = examined(**mlflow, **prefect)
    assert (findings["Prefect"].ok, findings["MLflow"].ok) == (ok, ok)
    assert password not in findings["MLflow"].detail + findings["Prefect"].detail
