"""The login of a Prefect server on this machine: made when it first starts, and read by whoever may read its files.

It lies in a file of PREFECT_HOME that its owner alone can read. Commands that talk to a server of this machine by the
same PREFECT_HOME send it, unless the environment names another login; no other server is ever sent it.
"""

import os
import secrets
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

LOGIN_FILE = "server-login"
USER = "stillhouse"


def new_login() -> str:
    """A login, NAME:PASSWORD, that nobody can guess."""
    return f"{USER}:{secrets.token_urlsafe(32)}"


def login_file() -> Path:
    """Where the login of this PREFECT_HOME lies."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute() / LOGIN_FILE


def kept_login() -> str:
    """The login of this PREFECT_HOME, which is made where there is none yet."""
    path = login_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # The file is never there with other rights than these, nor half written for a second server that starts now.
        work = path.with_name(f"{path.name}.{os.getpid()}")
        with open(os.open(work, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(new_login())
        try:
            os.link(work, path)
        finally:
            work.unlink()
    except FileExistsError:
        pass
    return path.read_text(encoding="ascii").strip()


def send_login() -> None:
    """Has Prefect, which is yet to be imported, log in to a server of this machine that PREFECT_API_URL names."""
    url = os.environ.get("PREFECT_API_URL", "")
    if "PREFECT_API_AUTH_STRING" not in os.environ and _is_here(url) and login_file().exists():
        os.environ["PREFECT_API_AUTH_STRING"] = kept_login()


def _is_here(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
