"""The login of a Prefect server on this machine, made when it first starts.

It is in a file of PREFECT_HOME that only its owner can read. Commands with the same PREFECT_HOME send it to a server
of this machine, unless the environment sets another login; no other server is ever sent it.
"""

import os
import secrets
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

LOGIN_FILE = "server-login"
USER = "stillhouse"


def new_login() -> str:
    """Return a login, NAME:PASSWORD, with a random password."""
    return f"{USER}:{secrets.token_urlsafe(32)}"


def login_file() -> Path:
    """Return the file with the login of this PREFECT_HOME."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute() / LOGIN_FILE


def kept_login() -> str:
    """Return the login of this PREFECT_HOME, made if there is none yet."""
    path = login_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # The file never exists with other rights, nor half written for a second server that starts at the same time.
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
    """Have Prefect log in to a server of this machine in PREFECT_API_URL; call it before Prefect is imported."""
    url = os.environ.get("PREFECT_API_URL", "")
    if "PREFECT_API_AUTH_STRING" not in os.environ and _is_here(url) and login_file().exists():
        os.environ["PREFECT_API_AUTH_STRING"] = kept_login()


def _is_here(url: str) -> bool:
    name = urlsplit(url).hostname or ""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
