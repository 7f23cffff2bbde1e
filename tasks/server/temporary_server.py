"""Prefect's temporary server, which a run without PREFECT_API_URL starts for itself, in a session of its own.

Prefect starts it in the run's process group. There Ctrl-C ends the server along with the run, which then cannot report
that it was cancelled; and the server outlives a run that is killed. Prefect's requires no login either; this one has a
login, which the run's children get by the environment.
"""

import os
import sys
from typing import Any

from prefect.context import refresh_global_settings_context
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings

from stillhouse.processes.guarded_process import GuardedProcess
from tasks.server.login import new_login
from tasks.server.prefect_server import own_origins, serve


class TemporaryServer(SubprocessASGIServer):
    """Prefect's, with a guarded process."""

    def _run_uvicorn_command(self) -> Any:
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        login = os.environ["PREFECT_API_AUTH_STRING"]
        settings |= {
            "PREFECT_UI_ENABLED": "0",
            "PREFECT__SERVER_EPHEMERAL": "1",
            "PREFECT_API_AUTH_STRING": login,
            "PREFECT_SERVER_API_AUTH_STRING": login,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": own_origins("127.0.0.1", self.port or 0),
        }
        return _Process("tasks.server.temporary_server", [str(self.port)], env=settings)


class _Process(GuardedProcess):
    """A guarded process with the interface of `subprocess.Popen` that Prefect uses."""

    stdout = stderr = None
    """The server writes to the run's own standard error."""

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(timeout)

    def terminate(self) -> None:
        self.stop()

    def kill(self) -> None:
        self.stop(grace_s=0.0)


def use_temporary_server() -> None:
    """Has Prefect use this server as its temporary one, and log in to it."""
    os.environ["PREFECT_API_AUTH_STRING"] = new_login()
    refresh_global_settings_context()
    SubprocessASGIServer._instances[None] = TemporaryServer()


def main() -> None:
    """Serves on the port given as argument."""
    # The parent does not read standard output.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve("127.0.0.1", int(sys.argv[1]))


if __name__ == "__main__":
    main()
