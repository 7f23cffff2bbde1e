"""A training as a Ray job: one actor a host, in a placement group, each of which runs that host's torchrun."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stillhouse.config import RuntimeConfig
from stillhouse.errors import ConfigError
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.attempt import Attempt
from stillhouse.training.launch.messages import EXIT_S, GRACE_S, TAIL_LINES

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_UNKNOWN: Final = "status code 404"
_ALREADY_KNOWN: Final = "already exists"


@dataclass(frozen=True, slots=True)
class JobStatus:
    has_ended: bool
    """Nothing of it runs, or ever will."""
    reason: str = ""
    """Why it ended, or what it waits for; empty while it runs."""
    killed: bool = False
    """Something from outside ended it, so that the same training is worth another try."""


class RayJobs:
    """Jobs of the Ray cluster at `runtime.ray_address`, by names we choose.

    Each call raises ConnectionError where the cluster does not answer.
    """

    def __init__(self, runtime: RuntimeConfig) -> None:
        self._client = _connect(runtime.ray_address)

    def submit(self, attempt: Attempt, job: TrainJob) -> None:
        """Submit the driver, which asks for the hosts and waits for them; do nothing where it is known already."""
        command = [sys.executable, "-m", "stillhouse.training.launch.ray_driver", str(attempt.folder)]
        # Ray kills what is not over 3 s after it was told to stop; a checkpoint takes longer.
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": f"{GRACE_S + EXIT_S:.0f}"}
        self._call(
            "submit_job",
            entrypoint=f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(command)}",
            submission_id=attempt.name,
            runtime_env={"env_vars": variables},
            accept=_ALREADY_KNOWN,
        )

    def status(self, name: str) -> JobStatus:
        """Return the job's status; a job that the cluster does not know has ended."""
        info = self._call("get_job_info", name, accept=_UNKNOWN)
        if info is None:
            reason = "the Ray cluster does not know the job, as happens when it was restarted"
            return JobStatus(True, reason, killed=True)
        if not info.status.is_terminal():
            return JobStatus(False)
        reason = f"the Ray job ended as {info.status}"
        # With an exit code of its own, the driver ended by itself.
        killed = info.status == "STOPPED" or info.driver_exit_code in (None, -9, 137)
        return JobStatus(True, reason, killed=killed)

    def cancel(self, name: str) -> None:
        """Ask for the job's end, which begins with SIGTERM; return before it has ended."""
        self._call("stop_job", name, accept=_UNKNOWN)

    def log_tail(self, name: str) -> str:
        """Return the end of what the job printed before it had a log of its own."""
        log = self._call("get_job_logs", name, accept=_UNKNOWN) or ""
        return "\n".join(log.splitlines()[-TAIL_LINES:])

    def _call(self, method: str, *args: Any, accept: str, **kwargs: Any) -> Any:
        """Call the client; return None for a refusal that contains `accept`.

        The client raises RuntimeError for every failed request, with the status in its message.
        """
        try:
            return getattr(self._client, method)(*args, **kwargs)
        except RuntimeError as error:
            if accept in str(error):
                return None
            raise ConnectionError(f"{method}: {error}") from error
        except OSError as error:  # what `requests` raises is one
            raise ConnectionError(f"{method}: {error}") from error


def _connect(address: str | None) -> "JobSubmissionClient":
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise ConfigError(
            "runtime.launcher is `ray`, but Ray is not installed: pip install -e '.[ray]', or set runtime.launcher to "
            "`subprocess`"
        ) from error
    try:
        return JobSubmissionClient(address)
    # A cluster that does not answer is a RuntimeError, a ConnectionError or a ValueError, by the kind of address.
    except (RuntimeError, OSError, ValueError) as error:
        raise ConfigError(
            f"runtime.ray_address: no Ray cluster answers at {address or 'this machine'}: {error}. Start one, or name "
            "its dashboard, such as `http://10.0.0.5:8265`"
        ) from error
