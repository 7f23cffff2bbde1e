"""Where a flow finds its keys: the environment, `.env` in its folder, Prefect's Secret blocks and Variables."""

import os
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.system import Secret
from prefect.variables import Variable

from stillhouse.config import parse_config
from stillhouse.doctor import examine
from stillhouse.errors import AuthenticationError
from stillhouse.keys import PLACES
from tasks.run.keys import find_keys, variables_of
from tests.flows.test_secrets import CANARY, folder_of_the_servers_database, spelled_in, written
from tests.provider import ReceivedRequest, Reply, completion

VARIABLE = "NIGHTLY_KEY"
ROWS = [{"prompt": "What is 17 + 25?"}]
SENT: list[str] = []
RUN = {"runtime": {"api_key_env": VARIABLE}}


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set no key, and restore the environment afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    SENT.clear()
    monkeypatch.delitem(PLACES, VARIABLE, raising=False)


def answer(request: ReceivedRequest) -> Reply:
    SENT.append(request.authorization)
    return Reply(completion("It is 42."))


def test_a_flow_reads_the_env_file_of_its_working_directory(generate, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"{VARIABLE}={CANARY}\n")
    generate(ROWS, **RUN)
    assert set(SENT) == {f"Bearer {CANARY}"}


def test_a_secret_block_is_a_key_that_nothing_written_shows(
    generate, tmp_path: Path, capfd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Secret(value=CANARY).save("nightly-key", overwrite=True)
    try:
        with caplog.at_level("DEBUG"):
            generate(ROWS, **RUN, tracking={"enabled": True})
    finally:
        Secret.delete("nightly-key")
    assert set(SENT) == {f"Bearer {CANARY}"}
    files = written(tmp_path, Path(os.environ["PREFECT_HOME"]), folder_of_the_servers_database())
    assert {"mlflow.db", "prefect-test.db", "report.html"} <= {path.name for path in files}
    assert [path for path, content in files.items() if spelled_in(content)] == []
    assert spelled_in(("".join(capfd.readouterr()) + caplog.text).encode()) == []


def test_a_block_comes_before_a_variable_and_a_key_of_digits_stays_as_it_is() -> None:
    Variable.set("nightly_key", "of the variable", overwrite=True)
    try:
        find_keys([VARIABLE])
        assert (os.environ.pop(VARIABLE), PLACES[VARIABLE]) == ("of the variable", "Variable `nightly_key`")
        Secret(value="0123").save("nightly-key", overwrite=True)
        find_keys([VARIABLE])
        assert (os.environ[VARIABLE], PLACES[VARIABLE]) == ("0123", "Secret block `nightly-key`")
    finally:
        Variable.unset("nightly_key")
        Secret.delete("nightly-key")


def test_a_key_that_is_nowhere_is_an_error_that_names_the_places(generate, tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError) as caught:
        generate(ROWS, **RUN)
    assert f"{VARIABLE} is not set, nor is it in {tmp_path}/.env (no such file), nor as Secret" in str(caught.value)
    place = f"Secret block `nightly-key` or Variable `nightly_key` on {os.environ['PREFECT_API_URL']}"
    assert f"{place}. Put it into one of them" in str(caught.value)


def test_a_server_that_cannot_be_asked_is_told_from_one_that_has_no_key(unused_url: str) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: unused_url}):
        find_keys([VARIABLE])
    assert f"on {unused_url}, which cannot be asked: " in PLACES[VARIABLE]


def test_the_doctor_says_where_a_key_was_found(provider: Any, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"{VARIABLE}={CANARY}\n")
    body = {"teacher": {"base_url": provider.url}, "runtime": {"api_key_env": VARIABLE, "store": str(tmp_path / "s")}}
    config = parse_config(body, "test")
    find_keys(variables_of(config))
    (found,) = (finding for finding in examine(config) if finding.name == "API key")
    assert (found.ok, found.detail) == (True, f"{VARIABLE} is set: found in {tmp_path}/.env")


def test_the_variables_of_endpoints_servers_and_tools_are_looked_for() -> None:
    server = {"name": "notes", "url": "http://127.0.0.1:9/mcp", "headers_env": {"Authorization": "NOTES_KEY"}}
    teachers = [
        {"name": "t", "kind": "vllm", "model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "SCORING_KEY"}
    ]
    body = {
        "tools": {"environment": ["SHOP"], "mcp": [server]},
        "on_policy": {"teachers": teachers},
        "dataset": {"judge": {"enabled": True, "model": {"base_url": "http://127.0.0.1:9/v1"}}},
    }
    assert variables_of(parse_config(body, "test")) == ("NOTES_KEY", "OPENAI_API_KEY", "SCORING_KEY", "SHOP")
    assert variables_of(parse_config({}, "test")) == ()
