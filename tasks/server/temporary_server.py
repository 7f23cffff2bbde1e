"""Prefect's temporary server, which a run without PREFECT_API_URL starts for itself, in a session of its own.

Prefect starts it in the run's own process group. There Ctrl-C in a terminal ends the server along with the run, which
then waits for it in vain to tell that it was cancelled; and the server outlives a run that is killed. Prefect's answers
whoever asks, too: this one has a login of its own, which the environment hands to the run's children.
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
    """Prefect's own, but for the process that it starts."""

    def _run_uvicorn_command(self) -> Any:
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        login = os.environ["PREFECT_API_AUTH_STRING"]
        own = {
            "PREFECT_UI_ENABLED": "0",
            "PREFECT__SERVER_EPHEMERAL": "1",
            "PREFECT_API_AUTH_STRING": login,
            "PREFECT_SERVER_API_AUTH_STRING": login,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": own_origins("127.0.0.1", self.port or 0),
        }
        return _Process("tasks.server.temporary_server", [str(self.port)], env={**settings, **own})


class _Process(GuardedProcess):
    """A guarded process as Prefect asks `subprocess.Popen` for it."""

    stdout = stderr = None
    """Nothing to be read: the server writes to the run's own standard error."""

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
    """Has Prefect take this server for its temporary one, if it comes to start one, and log in to it."""
    os.environ["PREFECT_API_AUTH_STRING"] = new_login()
    refresh_global_settings_context()
    SubprocessASGIServer._instances[None] = TemporaryServer()


def main() -> None:
    """Serves on the port given as argument."""
    # The parent reads nothing of what is said.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve("127.0.0.1", int(sys.argv[1]))


if __name__ == "__main__":
    main()
