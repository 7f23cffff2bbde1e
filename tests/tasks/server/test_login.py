import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.server.login import kept_login, login_file, send_login

SENT = "PREFECT_API_AUTH_STRING"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "runs" / "prefect"
    monkeypatch.setenv("PREFECT_HOME", str(home))
    # Set and removed again, so that what the test itself sets is gone after it.
    monkeypatch.setenv(SENT, "")
    monkeypatch.delenv(SENT)
    return home


def test_the_login_is_made_once_and_for_its_owner_alone(home: Path) -> None:
    login = kept_login()
    assert kept_login() == login
    assert [path.name for path in home.iterdir()] == [login_file().name]
    assert stat.S_IMODE(login_file().stat().st_mode) == 0o600
    name, password = login.split(":")
    assert (name, len(password) >= 40) == ("stillhouse", True)


def test_servers_that_start_at_once_agree_on_the_login() -> None:
    program = [sys.executable, "-c", "from tasks.server.login import kept_login; print(kept_login())"]
    with ThreadPoolExecutor(4) as pool:
        logins = list(pool.map(lambda _: subprocess.check_output(program, env=dict(os.environ)), range(4)))
    assert len(set(logins)) == 1


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        *((url, True) for url in ("http://127.0.0.1:4200/api", "http://localhost/api", "http://[::1]:4200/api")),
        *((url, False) for url in ("https://team.example/api", "http://127.0.0.1.evil.test/api", "", "nonsense")),
    ],
)
def test_a_server_of_this_machine_and_no_other_is_sent_the_login(
    url: str, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = kept_login()
    monkeypatch.setenv("PREFECT_API_URL", url)
    send_login()
    assert os.environ.get(SENT) == (login if is_here else None)


def test_the_users_own_login_stands_and_clients_never_make_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    send_login()
    assert not home.exists()
    kept_login()
    monkeypatch.setenv(SENT, "me:mine")
    send_login()
    assert os.environ[SENT] == "me:mine"
