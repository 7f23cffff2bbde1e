"""Prefect's temporary server, which a run without PREFECT_API_URL starts for itself, in a session of its own.

Prefect starts it in the run's own process group. There Ctrl-C in a terminal ends the server along with the run, which
then waits for it in vain to tell that it was cancelled; and the server outlives a run that is killed.
"""

import os
import sys
from typing import Any

import uvicorn
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings

from stillhouse.processes import GuardedProcess, die_with_parent


class TemporaryServer(SubprocessASGIServer):
    """Prefect's own, but for the process that it starts."""

    def _run_uvicorn_command(self) -> Any:
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        ephemeral = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        return _Process("tasks.temporary_server", [str(self.port)], env={**settings, **ephemeral})


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
    """Has Prefect take this server for its temporary one, if it comes to start one."""
    SubprocessASGIServer._instances[None] = TemporaryServer()


def main() -> None:
    """Serves on the port given as argument until the parent is gone."""
    die_with_parent()
    # The parent reads nothing of what is said.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    uvicorn.run(
        "prefect.server.api.server:create_app",
        factory=True,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
        lifespan="on",
    )


if __name__ == "__main__":
    main()
