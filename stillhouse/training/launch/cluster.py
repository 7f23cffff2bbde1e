"""A training as the job of a cluster: submitted or found again, followed through the store, and ended with its flow.

The cluster itself is asked for little (`RayJobs`). Progress, result and errors come from the attempt's folder,
which the hosts share with the flow. A flow that ends in order, also by an error or a cancel, ends its job. A flow that
is killed leaves it running, and the same command follows it.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stillhouse.errors import TrainingError, TrainingKilled
from stillhouse.progress.state import Progress
from stillhouse.training.job import LOG_FILE, TrainJob
from stillhouse.training.launch.attempt import ALL_MESSAGES, Attempt, MessageFile, begin_attempt, last_attempt
from stillhouse.training.launch.messages import EXIT_S, GRACE_S, relay, tail
from stillhouse.training.launch.ray_jobs import JobStatus, RayJobs
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Timeouts:
    poll_s: float = 2.0
    """Between two looks at the job."""
    settle_s: float = 20.0
    """For messages of the hosts after the job has ended, which take a while through a network file system."""
    verdict_s: float = 120.0
    """For the job's end after a host has failed: a cluster takes a minute to notice that another one was lost."""
    unreachable_s: float = 600.0
    """For a cluster that does not answer, for instance while its API server restarts."""
    stop_s: float = GRACE_S + EXIT_S
    """For a cancelled job to save its checkpoint."""


def train_on_cluster(job: TrainJob, progress: Progress, jobs: RayJobs, timeouts: Timeouts = Timeouts()) -> JsonObject:
    """Train as a job of the cluster, or follow the job of a killed flow; return the trainer's facts.

    Raises:
        ConfigError: the cluster refuses the job.
        TrainingError: the training failed; the message holds the reason.
        TrainingKilled: something from outside ended it, or the cluster no longer answers.
    """
    try:
        attempt = _running_attempt(job, jobs) or _submitted(job, jobs, timeouts)
    except ConnectionError as error:
        raise TrainingKilled(f"{job.method}: the cluster does not answer: {error}") from error
    with _cancelled_on_error(jobs, attempt.name, timeouts):
        facts = _Follower(job, attempt, jobs, timeouts).follow(progress)
    # It ends by itself as a rule, and until then writes to the work folder.
    with suppress(ConnectionError):
        if not _wait_until_ended(jobs, attempt.name, EXIT_S, timeouts.poll_s):
            jobs.cancel(attempt.name)
    attempt.take_student(job.output_dir)
    return facts


def _submitted(job: TrainJob, jobs: RayJobs, timeouts: Timeouts) -> Attempt:
    attempt = begin_attempt(job)
    with _cancelled_on_error(jobs, attempt.name, timeouts):
        jobs.submit(attempt, job)
    logger.info("%s: submitted as job %s", job.method, attempt.name)
    return attempt


def _running_attempt(job: TrainJob, jobs: RayJobs) -> Attempt | None:
    """Return the last attempt if it is still running, or finished after its flow was killed."""
    attempt = last_attempt(job.work_dir)
    if attempt is None or not attempt.folder.is_dir():
        return None
    files = attempt.folder.glob(ALL_MESSAGES)
    done = any("done" in message for path in files for message in MessageFile(path).new_messages())
    if not done and jobs.status(attempt.name).has_ended:
        return None
    logger.info("%s: goes on with job %s, which an earlier run left behind", job.method, attempt.name)
    return attempt


class _Unreachable(TrainingKilled):
    """The cluster does not answer, so that it cannot be told to end the job either."""


@dataclass
class _Follower:
    """Reads the messages of one attempt's hosts until the training is done or can no longer be."""

    job: TrainJob
    attempt: Attempt
    jobs: RayJobs
    timeouts: Timeouts

    def __post_init__(self) -> None:
        self._files: dict[Path, MessageFile] = {}
        self._failures: list[JsonObject] = []
        self._reached_at = time.monotonic()
        self._warning = ""

    def follow(self, progress: Progress) -> JsonObject:
        deadline = math.inf
        while True:
            # Before the messages: what a job wrote before it ended is then read in the same round.
            status = self._poll()
            if (facts := self._read(progress)) is not None:
                return facts
            now = time.monotonic()
            if status.has_ended or self._failures:
                patience = self.timeouts.settle_s if status.has_ended else self.timeouts.verdict_s
                deadline = min(deadline, now + patience)
                if now >= deadline or (status.has_ended and self._failures):
                    raise self._error(status)
            time.sleep(self.timeouts.poll_s)

    def _poll(self) -> JobStatus:
        try:
            status = self.jobs.status(self.attempt.name)
        except ConnectionError as error:
            if time.monotonic() - self._reached_at > self.timeouts.unreachable_s:
                raise _Unreachable(
                    f"{self.job.method}: the cluster of job {self.attempt.name} has not answered for "
                    f"{self.timeouts.unreachable_s:.0f} s: {error}. The job may still run; the same command follows it"
                ) from error
            self._warn_once(f"the cluster does not answer: {error}")
            return JobStatus(has_ended=False)
        self._reached_at = time.monotonic()
        self._warn_once("" if status.has_ended else status.reason)
        return status

    def _warn_once(self, warning: str) -> None:
        if warning and warning != self._warning:
            logger.warning("%s: job %s: %s", self.job.method, self.attempt.name, warning)
        self._warning = warning

    def _read(self, progress: Progress) -> JsonObject | None:
        for path in sorted(self.attempt.folder.glob(ALL_MESSAGES)):
            for message in self._files.setdefault(path, MessageFile(path)).new_messages():
                relay(message, progress)
                if "done" in message:
                    return message["done"]
                if "error" in message:
                    self._failures.append(message)
        return None

    def _error(self, status: JobStatus) -> TrainingError:
        source = f"(job {self.attempt.name}, log: {self.job.work_dir / LOG_FILE})"
        if self._failures:
            first = min(self._failures, key=lambda message: message["at"])
            return (TrainingKilled if first["killed"] else TrainingError)(f"{first['error']} {source}")
        try:
            printed = self.jobs.log_tail(self.attempt.name)
        except ConnectionError as error:
            printed = f"(the cluster does not answer: {error})"
        return (TrainingKilled if status.killed else TrainingError)(
            f"{self.job.method}: {status.reason} {source}. Run the same command again to continue from the last "
            f"checkpoint. The end of what it printed:\n{printed.strip() or tail(self.job.work_dir / LOG_FILE)}"
        )


@contextmanager
def _cancelled_on_error(jobs: RayJobs, name: str, timeouts: Timeouts) -> Iterator[None]:
    """Cancel the job where the block ends by an exception, which includes a cancel of the flow."""
    try:
        yield
    except _Unreachable:
        raise
    except BaseException:
        try:
            jobs.cancel(name)
            if not _wait_until_ended(jobs, name, timeouts.stop_s, timeouts.poll_s):
                logger.warning("job %s was cancelled %.0f s ago and has not ended yet", name, timeouts.stop_s)
        except ConnectionError as error:
            logger.warning("job %s could not be cancelled and may still run: %s", name, error)
        raise


def _wait_until_ended(jobs: RayJobs, name: str, timeout_s: float, poll_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not jobs.status(name).has_ended:
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True
