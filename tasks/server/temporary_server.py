"""Prefect's server of one run, which a run without PREFECT_API_URL starts for itself, in a session of its own.

It is started before Prefect is imported here, and imports Prefect at the same time: that takes both of them seconds.
Its socket listens from the first moment, so that a request that comes too early waits for the answer. Prefect's own
temporary server is started by the first request, which imports the whole server in the run's process as well; in the
run's process group, where Ctrl-C ends the server along with the run, which then cannot report that it was cancelled; it
outlives a run that is killed; and it requires no login. This one has a login, which the run's children get by the
environment.
"""

import atexit
import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from stillhouse.errors import StillhouseError
from stillhouse.processes.gc_tuning import rarely_collected
from stillhouse.processes.guarded_process import GuardedProcess
from tasks.server.login import new_login
from tasks.server.prefect_server import own_origins, serve

_VARIABLE = "STILLHOUSE_TEMPORARY_SERVER"
"""Set in a run with a temporary server, and in its children."""
_logger = logging.getLogger("stillhouse.server")
_SLIM = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    # A server that stays registers the types of blocks; a run uses none.
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
}


def ensure_server() -> None:
    """Start a temporary server unless Prefect's settings name one; call it before Prefect is imported."""
    if not os.environ.get("PREFECT_API_URL") and _settings_url() is None:
        start_temporary_server()


def start_temporary_server() -> None:
    """Have Prefect use a new server, which ends with this process once it has the last logs and events."""
    login = new_login()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, number = listener.getsockname()[1], listener.fileno()
        env = {
            **_SLIM,
            "PREFECT_API_AUTH_STRING": login,
            "PREFECT_SERVER_API_AUTH_STRING": login,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": own_origins("127.0.0.1", port),
        }
        args = [str(port), str(number)]
        server = GuardedProcess("tasks.server.temporary_server", args, env, pass_fds=[number])
    # Functions registered later are called earlier: Prefect's are, when it is imported.
    atexit.register(server.stop)
    os.environ |= {
        "PREFECT_API_AUTH_STRING": login,
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        _VARIABLE: "1",
    }


@contextmanager
def flow_on_server() -> Iterator[None]:
    """Run a flow without heartbeats to a temporary server; raise StillhouseError for a server that does not answer."""
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    if has_lasting_server():
        from tasks.server.outages import wait_out_outages

        wait_out_outages(_logger.warning)
    # The end of a flow waits up to a second for the thread that sends them.
    settings = nullcontext() if has_lasting_server() else temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    try:
        with settings:
            yield
    except RuntimeError as error:
        if not str(error).startswith("Failed to reach API"):
            raise
        remedy = (
            "start it, or unset PREFECT_API_URL, and the run starts one of its own"
            if has_lasting_server()
            else "the run started it, and the lines above say why it ended"
        )
        raise StillhouseError(f"Prefect's server at {PREFECT_API_URL.value()} does not answer: {remedy}") from error


def has_lasting_server() -> bool:
    """Return whether this run's Prefect server outlives it: one that shows pages and whose people can answer."""
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value() is not None and _VARIABLE not in os.environ


def _settings_url() -> str | None:
    """Return PREFECT_API_URL of a profile or a settings file; Prefect is imported only where there is one of these."""
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    files = {
        Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml"): "",
        Path("prefect.toml"): "",
        Path("pyproject.toml"): "[tool.prefect",
    }
    if not any(file.is_file() and mark in file.read_text(errors="replace") for file, mark in files.items()):
        return None
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value()


def main() -> None:
    # The parent does not read standard output.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with rarely_collected():
        serve("127.0.0.1", int(sys.argv[1]), listener=int(sys.argv[2]))


if __name__ == "__main__":
    main()
