"""A training as a Ray job: one actor a host, in a placement group, each of which runs that host's torchrun."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stillhouse.config import RuntimeConfig
from stillhouse.errors import ConfigError
from stillhouse.progress.state import Progress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.attempt import Attempt
from stillhouse.training.launch.cluster import Standing, train_on_cluster
from stillhouse.training.launch.messages import GRACE_S, LEAVE_S, TAIL_LINES
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_UNKNOWN: Final = "status code 404"
_KNOWN: Final = "already exists"


def train_by_ray(job: TrainJob, progress: Progress) -> JsonObject:
    """Trains on the hosts of the Ray cluster at `runtime.ray_address`, which see the store under the same path.

    Raises:
        ConfigError: the extra `ray` is not installed, or no cluster answers.
        TrainingError: the training failed; the message is that of the host that failed first.
        TrainingKilled: something from outside ended it.
    """
    return train_on_cluster(job, progress, RayJobs(job.runtime))


class RayJobs:
    """Jobs of a Ray cluster. See `ClusterJobs`.

    Args:
        runtime: names the cluster.

    Raises:
        ConfigError: the extra `ray` is not installed, or no cluster answers.
    """

    def __init__(self, runtime: RuntimeConfig) -> None:
        self._client = _connect(runtime.ray_address)

    def submit(self, attempt: Attempt, job: TrainJob) -> None:
        """See `ClusterJobs.submit`. The job itself asks for the hosts and waits for them."""
        command = ["python", "-m", "stillhouse.training.launch.ray_driver", str(attempt.folder)]
        # Ray kills what is not over 3 s after it was told to stop; a checkpoint takes longer.
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": f"{GRACE_S + LEAVE_S:.0f}"}
        self._ask(
            "submit_job",
            entrypoint=f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(command)}",
            submission_id=attempt.name,
            runtime_env={"env_vars": variables},
            otherwise=_KNOWN,
        )

    def standing(self, name: str) -> Standing:
        """See `ClusterJobs.standing`."""
        info = self._ask("get_job_info", name, otherwise=_UNKNOWN)
        if info is None:
            return Standing(
                True, "the Ray cluster does not know the job, as happens when it was restarted", killed=True
            )
        if not info.status.is_terminal():
            return Standing(False)
        reason = f"the Ray job ended as {info.status}"
        # With an exit code of its own, the driver ended by itself.
        killed = info.status == "STOPPED" or info.driver_exit_code in (None, -9, 137)
        return Standing(True, reason, killed=killed)

    def cancel(self, name: str) -> None:
        """See `ClusterJobs.cancel`."""
        self._ask("stop_job", name, otherwise=_UNKNOWN)

    def last_words(self, name: str) -> str:
        """See `ClusterJobs.last_words`."""
        words = self._ask("get_job_logs", name, otherwise=_UNKNOWN) or ""
        return "\n".join(words.splitlines()[-TAIL_LINES:])

    def _ask(self, call: str, *args: Any, otherwise: str, **kwargs: Any) -> Any:
        """What the client says; None for a refusal that says `otherwise`.

        The client raises RuntimeError for every answer but a good one, with the status in its message.
        """
        try:
            return getattr(self._client, call)(*args, **kwargs)
        except RuntimeError as error:
            if otherwise in str(error):
                return None
            raise ConnectionError(f"{call}: {error}") from error
        except OSError as error:  # what `requests` raises is one
            raise ConnectionError(f"{call}: {error}") from error


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
    # What does not answer is a RuntimeError, a ConnectionError or a ValueError, by the kind of address.
    except (RuntimeError, OSError, ValueError) as error:
        raise ConfigError(
            f"runtime.ray_address: no Ray cluster answers at {address or 'this machine'}: {error}. Start one, or name "
            "its dashboard, such as `http://10.0.0.5:8265`"
        ) from error
