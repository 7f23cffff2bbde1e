"""A training as the job of a cluster: submitted or found again, followed through the store, and ended with its flow.

What the cluster itself is asked for is small (`ClusterJobs`); how far the training is, its result and its errors come
from the attempt's folder, which the hosts share with the flow. A flow that ends in order, by an error or a cancel too,
takes its job with it. One that is killed leaves it running: the same command follows it on.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stillhouse.config import RuntimeConfig
from stillhouse.errors import TrainingError, TrainingKilled
from stillhouse.progress.state import Progress
from stillhouse.training.job import LOG_FILE, TrainJob
from stillhouse.training.launch.attempt import AnswerFile, Attempt, begin_attempt, last_attempt
from stillhouse.training.launch.messages import GRACE_S, LEAVE_S, relay, tail_of
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a cluster's job stands."""

    is_over: bool
    """Nothing of it runs, or ever will."""
    reason: str = ""
    """Why it is over, or what it waits for; empty while it runs."""
    killed: bool = False
    """Something from outside ended it, so that the same training is worth another try."""


class ClusterJobs(Protocol):
    """A cluster's jobs, by names of our own. Each call raises ConnectionError where the cluster does not answer."""

    def submit(self, attempt: Attempt, job: TrainJob) -> None:
        """Asks for the job; does nothing where it is known already.

        Raises:
            ConfigError: the cluster refuses it.
        """

    def standing(self, name: str) -> Standing:
        """How the job stands; one the cluster does not know is over."""

    def cancel(self, name: str) -> None:
        """Has the job ended, its processes by SIGTERM first; returns before it is over."""

    def last_words(self, name: str) -> str:
        """The end of what the job printed before it had a log of its own."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is waited for, in seconds."""

    look_s: float = 2.0
    """Between two looks at the job."""
    settle_s: float = 20.0
    """For words of the hosts after the job is over, which take a while through a network file system."""
    silence_s: float = 600.0
    """For a cluster that does not answer, while its API server is restarted for instance."""
    stop_s: float = GRACE_S + LEAVE_S
    """For a job that was cancelled and saves its checkpoint."""


def gpus_of(runtime: RuntimeConfig) -> int:
    """GPUs that one host of a training asks its cluster for."""
    if runtime.gpus_per_host is not None:
        return runtime.gpus_per_host
    return 0 if runtime.device == "cpu" else runtime.num_processes


def train_on_cluster(
    job: TrainJob,
    progress: Progress,
    jobs: ClusterJobs,
    patience: Patience = Patience(),
) -> JsonObject:
    """Trains as a job of the cluster, the one that an earlier flow left running if there is one; the trainer's facts.

    Raises:
        ConfigError: the cluster refuses the job.
        TrainingError: the training failed; the message holds its last words.
        TrainingKilled: something from outside ended it, or the cluster does not answer any more.
    """
    try:
        attempt = _left_running(job, jobs) or _submitted(job, jobs, patience)
    except ConnectionError as error:
        raise TrainingKilled(f"{job.method}: the cluster does not answer: {error}") from error
    with _stopped_on_error(jobs, attempt.name, patience):
        facts = _Follower(job, attempt, jobs, patience).follow(progress)
    # It ends by itself as a rule, and until then writes to the work folder.
    with suppress(ConnectionError):
        if not _wait_until_over(jobs, attempt.name, LEAVE_S, patience.look_s):
            jobs.cancel(attempt.name)
    attempt.take_student(job.output_dir)
    return facts


def _submitted(job: TrainJob, jobs: ClusterJobs, patience: Patience) -> Attempt:
    attempt = begin_attempt(job)
    with _stopped_on_error(jobs, attempt.name, patience):
        jobs.submit(attempt, job)
    logger.info("%s: submitted as job %s", job.method, attempt.name)
    return attempt


def _left_running(job: TrainJob, jobs: ClusterJobs) -> Attempt | None:
    """The attempt that goes on, or was done, when the flow that began it was killed."""
    attempt = last_attempt(job.work_dir)
    if attempt is None or not attempt.folder.is_dir():
        return None
    done = any("done" in message for path in attempt.answer_files() for message in AnswerFile(path).fresh())
    if not done and jobs.standing(attempt.name).is_over:
        return None
    logger.info("%s: goes on with job %s, which an earlier run left behind", job.method, attempt.name)
    return attempt


class _Silent(TrainingKilled):
    """The cluster does not answer, so that it cannot be told to end the job either."""


class _Follower:
    """Reads what the hosts of one attempt answer until one has trained, or none ever will."""

    def __init__(self, job: TrainJob, attempt: Attempt, jobs: ClusterJobs, patience: Patience) -> None:
        self._job = job
        self._attempt = attempt
        self._jobs = jobs
        self._patience = patience
        self._files: dict[Path, AnswerFile] = {}
        self._failures: list[JsonObject] = []
        self._heard_at = time.monotonic()
        self._told = ""

    def follow(self, progress: Progress) -> JsonObject:
        """The trainer's facts; raises as `train_on_cluster`."""
        ends_by: float | None = None
        while True:
            # Before the answers: what a job wrote before it was over is then read in the same turn.
            standing = self._look()
            if (facts := self._read(progress)) is not None:
                return facts
            now = time.monotonic()
            if standing.is_over or self._failures:
                ends_by = ends_by or now + self._patience.settle_s
                if now >= ends_by or (standing.is_over and self._failures):
                    raise self._error(standing)
            time.sleep(self._patience.look_s)

    def _look(self) -> Standing:
        try:
            standing = self._jobs.standing(self._attempt.name)
        except ConnectionError as error:
            if time.monotonic() - self._heard_at > self._patience.silence_s:
                raise _Silent(
                    f"{self._job.method}: the cluster of job {self._attempt.name} has not answered for "
                    f"{self._patience.silence_s:.0f} s: {error}. The job may still run; the same command follows it on"
                ) from error
            self._tell(f"the cluster does not answer: {error}")
            return Standing(is_over=False)
        self._heard_at = time.monotonic()
        self._tell("" if standing.is_over else standing.reason)
        return standing

    def _tell(self, what: str) -> None:
        if what and what != self._told:
            logger.warning("%s: job %s: %s", self._job.method, self._attempt.name, what)
        self._told = what

    def _read(self, progress: Progress) -> JsonObject | None:
        for path in self._attempt.answer_files():
            for message in self._files.setdefault(path, AnswerFile(path)).fresh():
                if "progress" in message:
                    relay(message["progress"], progress)
                elif "done" in message:
                    return message["done"]
                elif "error" in message:
                    self._failures.append(message)
        return None

    def _error(self, standing: Standing) -> TrainingError:
        where = f"(job {self._attempt.name}, log: {self._job.work_dir / LOG_FILE})"
        if self._failures:
            first = min(self._failures, key=lambda message: message["at"])
            return (TrainingKilled if first["killed"] else TrainingError)(f"{first['error']} {where}")
        kind = TrainingKilled if standing.killed else TrainingError
        return kind(
            f"{self._job.method}: {standing.reason} {where}. Run the same command again to continue from the last "
            f"checkpoint. The end of what it printed:\n{self._last_words()}"
        )

    def _last_words(self) -> str:
        try:
            words = self._jobs.last_words(self._attempt.name)
        except ConnectionError as error:
            words = f"(the cluster does not answer: {error})"
        return words.strip() or tail_of(self._job.work_dir / LOG_FILE)


@contextmanager
def _stopped_on_error(jobs: ClusterJobs, name: str, patience: Patience) -> Iterator[None]:
    """Ends the job where the block ends by an exception, a cancel of the flow for one."""
    try:
        yield
    except _Silent:
        raise
    except BaseException:
        try:
            jobs.cancel(name)
            if not _wait_until_over(jobs, name, patience.stop_s, patience.look_s):
                logger.warning("job %s was cancelled %.0f s ago and is not over yet", name, patience.stop_s)
        except ConnectionError as error:
            logger.warning("job %s could not be cancelled and may still run: %s", name, error)
        raise


def _wait_until_over(jobs: ClusterJobs, name: str, timeout_s: float, look_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not jobs.standing(name).is_over:
        if time.monotonic() > deadline:
            return False
        time.sleep(look_s)
    return True
