"""A training followed through its attempt's folder, on a cluster that does as it is told."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stillhouse.errors import ConfigError, TrainingError, TrainingKilled
from stillhouse.progress.state import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.attempt import Attempt
from stillhouse.training.launch.cluster import Timeouts, train_on_cluster
from stillhouse.training.launch.ray_jobs import JobStatus
from stillhouse.types import JsonObject

RUNS = JobStatus(has_ended=False)
TIMEOUTS = Timeouts(poll_s=0.001, settle_s=0.05, verdict_s=0.05, unreachable_s=0.05, stop_s=0.05)
DONE = {"done": {"steps": 9}}

Turn = Callable[[Attempt], JobStatus]


class Cluster:
    """Each look at a job plays the next turn; the last one is played again and again."""

    def __init__(self, *turns: Turn) -> None:
        self.turns = list(turns)
        self.submitted: list[Attempt] = []
        self.cancelled: list[str] = []

    def submit(self, attempt: Attempt, job: TrainJob) -> None:
        assert TrainJob.model_validate_json(attempt.job_file.read_bytes()).student_ref == job.student_ref
        self.submitted.append(attempt)

    def status(self, name: str) -> JobStatus:
        if name in self.cancelled:
            return JobStatus(True, "cancelled")
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        return turn(next(attempt for attempt in self.submitted if attempt.name == name))

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)

    def log_tail(self, name: str) -> str:
        return "python: No module named stillhouse"


def says(*messages: Any, who: str = "0", status: JobStatus = RUNS) -> Turn:
    """A turn in which a host answers."""

    def turn(attempt: Attempt) -> JobStatus:
        with attempt.message_file(who).open("a") as file:
            file.writelines(json.dumps(message) + "\n" for message in messages)
        return status

    return turn


def is_at(status: JobStatus) -> Turn:
    return lambda attempt: status


def away(attempt: Attempt) -> JobStatus:
    raise ConnectionError("connection refused")


def trains(attempt: Attempt) -> JobStatus:
    """The last turn of a training that is done."""
    student = TrainJob.model_validate_json(attempt.job_file.read_bytes()).output_dir
    (student / "deep").mkdir(parents=True, exist_ok=True)
    (student / "deep" / "weights").write_text("trained")
    return says(DONE, status=JobStatus(True, "ended"))(attempt)


def failed(error: str, at: float, *, killed: bool = False) -> dict[str, Any]:
    return {"error": error, "killed": killed, "at": at}


@pytest.fixture
def job(sft_job, tmp_path: Path) -> TrainJob:
    return sft_job(tmp_path)


def train_with(cluster: Cluster, job: TrainJob) -> JsonObject:
    return train_on_cluster(job, NoProgress(), cluster, TIMEOUTS)


def test_progress_is_relayed_and_the_student_is_where_the_flow_wants_it(job: TrainJob, listener):
    message = {"progress": {"stage": "sft", "done": 3, "total": 9, "facts": {"loss": 1.5}}}
    cluster = Cluster(is_at(JobStatus(False, "it waits")), says(message), trains)
    assert train_on_cluster(job, listener, cluster, TIMEOUTS) == {"steps": 9}
    assert listener.updates == [("sft", 3, 9, {"loss": 1.5})]
    assert (job.output_dir / "deep" / "weights").read_text() == "trained"
    assert cluster.cancelled == []


def test_half_a_line_is_read_once_it_is_complete(job: TrainJob):
    def half(attempt: Attempt) -> JobStatus:
        attempt.message_file("0").write_text('{"done": {"st')
        return RUNS

    def complete(attempt: Attempt) -> JobStatus:
        trains(attempt)
        attempt.message_file("0").write_text('{"done": {"steps": 4}}\n')
        return RUNS

    assert train_with(Cluster(half, complete, is_at(JobStatus(True))), job) == {"steps": 4}


OVER = JobStatus(True, "the job failed")


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        (
            [says(failed("connection closed", 7.0)), says(failed("disk full", 6.0), who="1", status=OVER)],
            r"^disk full \(job stillhouse-sft-\w+, log: .*train\.log\)$",
        ),
        ([is_at(OVER)], r"the job failed(?s:.*)No module named stillhouse"),
        ([is_at(OVER), is_at(OVER), says(failed("disk full", 1.0), status=OVER)], "^disk full"),
    ],
    ids=["of two hosts the first that failed", "what was printed", "a message late through a network file system"],
)
def test_a_job_that_failed_is_cancelled_and_its_error_raised(job: TrainJob, turns: list[Turn], message: str):
    cluster = Cluster(*turns)
    with pytest.raises(TrainingError, match=message) as raised:
        train_with(cluster, job)
    assert raised.type is TrainingError
    assert cluster.cancelled == [cluster.submitted[0].name]


def test_a_cancelled_flow_cancels_its_job(job: TrainJob):
    def cancel(attempt: Attempt) -> JobStatus:
        raise KeyboardInterrupt

    cluster = Cluster(is_at(RUNS), cancel)
    with pytest.raises(KeyboardInterrupt):
        train_with(cluster, job)
    assert cluster.cancelled == [cluster.submitted[0].name]


@pytest.fixture
def left_behind(job: TrainJob) -> Cluster:
    """A cluster with the job of a killed flow: nothing is cancelled."""

    class Killed(BaseException):
        pass

    def kill(attempt: Attempt) -> JobStatus:
        raise Killed

    cluster = Cluster(kill)
    with pytest.raises(Killed):
        train_with(cluster, job)
    cluster.cancelled = []
    return cluster


def test_a_flow_that_was_killed_finds_its_job_again_and_starts_no_second(job, left_behind: Cluster, tmp_path: Path):
    left_behind.turns = [is_at(RUNS), is_at(RUNS), trains]
    # The folder of the killed flow for the student is gone with it.
    again = job.model_copy(update={"output_dir": tmp_path / "other"})
    assert train_with(left_behind, again) == {"steps": 9}
    assert len(left_behind.submitted) == 1
    assert (tmp_path / "other" / "deep" / "weights").read_text() == "trained"


def test_what_was_done_while_no_flow_was_there_is_taken_though_the_cluster_forgot_it(job, left_behind: Cluster):
    trains(left_behind.submitted[0])
    left_behind.turns = [is_at(JobStatus(True, "gone", killed=True))]
    assert train_with(left_behind, job) == {"steps": 9}
    assert len(left_behind.submitted) == 1


def test_a_job_that_failed_while_no_flow_was_there_is_tried_again(job, left_behind: Cluster):
    left_behind.turns = [is_at(OVER), trains]
    assert train_with(left_behind, job) == {"steps": 9}
    assert len(left_behind.submitted) == 2


def test_a_cluster_that_is_away_for_a_moment_is_waited_for(job: TrainJob, caplog):
    cluster = Cluster(is_at(RUNS), away, away, trains)
    assert train_with(cluster, job) == {"steps": 9}
    assert [record.message for record in caplog.records if "does not answer" in record.message] == [
        f"sft: job {cluster.submitted[0].name}: the cluster does not answer: connection refused"
    ]


def test_a_cluster_that_stays_away_leaves_the_job_to_the_next_run(job: TrainJob):
    cluster = Cluster(is_at(RUNS), away)
    with pytest.raises(TrainingKilled, match="connection refused"):
        train_with(cluster, job)
    assert cluster.cancelled == []
    cluster.turns = [is_at(RUNS), trains]
    assert train_with(cluster, job) == {"steps": 9}
    assert len(cluster.submitted) == 1


def test_a_job_that_is_refused_leaves_nothing_to_follow(job: TrainJob):
    class Refusing(Cluster):
        def submit(self, attempt: Attempt, job: TrainJob) -> None:
            super().submit(attempt, job)
            raise ConfigError("no such namespace")

    with pytest.raises(ConfigError, match="no such namespace"):
        train_with(Refusing(is_at(RUNS)), job)
    assert not job.output_dir.exists()


def test_a_host_that_lost_its_connection_is_no_error_of_the_training_once_another_is_known_to_be_lost(job: TrainJob):
    broken = says(failed("connection reset", at=5.0))
    unnoticed = [is_at(RUNS)] * 100
    lost = says(failed("host 1 was lost", at=0.0, killed=True), who="cluster", status=JobStatus(True, "failed"))
    patient = replace(TIMEOUTS, verdict_s=60.0)
    with pytest.raises(TrainingKilled, match="host 1 was lost"):
        train_on_cluster(job, NoProgress(), Cluster(broken, *unnoticed, lost), patient)
