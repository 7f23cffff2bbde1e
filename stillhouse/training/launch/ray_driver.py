"""`python -m stillhouse.training.launch.ray_driver FOLDER`: what a Ray job runs, inside the cluster.

It waits for the hosts, starts an actor on each, and ends them all when the first fails or the job is stopped. A host
that is killed, for lack of memory or with its node, cannot report it: the driver does in its place.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.attempt import Attempt
from stillhouse.training.launch.messages import GRACE_S, MessageWriter, exit_reason

_TELL_EVERY_S: Final = 30.0


class Host:
    """Ray actor that runs one host's part in a process that dies with it."""

    def __init__(self, folder: str, number: int, directory: str) -> None:
        os.chdir(directory)
        arguments = [folder, "--host", str(number), "--address", ray.util.get_node_ip_address()]
        self._process = GuardedProcess("stillhouse.training.launch.host", arguments, grace_s=GRACE_S)

    def wait(self) -> int:
        """Return the exit code once the process has ended."""
        return self._process.wait()

    def stop(self) -> None:
        """Make the process save a checkpoint and end, and wait for that."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)


def main(attempt: Attempt) -> int:
    """Run all hosts; return the exit code of the first that failed, else 0."""
    job = TrainJob.model_validate_json(attempt.job_file.read_bytes())
    ray.init()
    hosts = _start_hosts(attempt, job)
    code = 0
    try:
        code = _wait(attempt, job, hosts)
        return code
    finally:
        lost = _stop(hosts)
        if code:
            # The first to fail may be a host whose connection to a lost one broke, with an error that is not retried.
            for number, error in lost.items():
                _report_lost(attempt, job, number, error)


def _wait(attempt: Attempt, job: TrainJob, hosts: Sequence[Any]) -> int:
    """Return the exit code of the first host that failed, else 0 once all have ended."""
    numbers = {host.wait.remote(): number for number, host in enumerate(hosts)}
    waiting = list(numbers)
    while waiting:
        (ended, *_), waiting = ray.wait(waiting)
        try:
            code = ray.get(ended)
        except RayError as error:
            _report_lost(attempt, job, numbers[ended], error)
            return 1
        if code < 0:
            _report(attempt, f"{job.method}: host {numbers[ended]} ended with {exit_reason(code)}")
        if code:
            return int(code)
    return 0


def _stop(hosts: Sequence[Any]) -> dict[int, RayError]:
    """Stop all hosts; return those that are lost, by their numbers, and why."""
    lost = {}
    for number, stopped in enumerate([host.stop.remote() for host in hosts]):
        try:
            ray.get(stopped)
        except RayError as error:
            lost[number] = error
    return lost


def _start_hosts(attempt: Attempt, job: TrainJob) -> list[Any]:
    """Return an actor for each host, once the cluster has room for all of them at once."""
    runtime = job.runtime
    gpus = 0 if runtime.device == "cpu" else runtime.num_processes
    needs = {"CPU": runtime.num_processes, "GPU": gpus if runtime.gpus_per_host is None else runtime.gpus_per_host}
    group = placement_group([needs] * runtime.num_hosts, strategy="SPREAD")
    ready = group.ready()
    with attempt.message_file("cluster").open("a") as stream:
        # A cluster may be growing. That it never has room, for instance without GPUs, is seen by these figures.
        while True:
            has = _listed(ray.cluster_resources())
            doing = f"waiting for {runtime.num_hosts} hosts with {_listed(needs)} each; the cluster has {has}"
            MessageWriter(stream).update(job.method, 0, None, doing=doing)
            if ray.wait([ready], timeout=_TELL_EVERY_S)[0]:
                break
    return [
        ray.remote(Host)
        .options(
            # A second thread, so that `stop` can be called while `wait` runs.
            max_concurrency=2,
            num_cpus=needs["CPU"],
            num_gpus=needs["GPU"],
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
        )
        .remote(str(attempt.folder), number, str(Path.cwd()))
        for number in range(runtime.num_hosts)
    ]


def _listed(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{resources.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))


def _report_lost(attempt: Attempt, job: TrainJob, number: int, error: RayError) -> None:
    _report(attempt, f"{job.method}: host {number} was lost: {error}")


def _report(attempt: Attempt, error: str) -> None:
    with attempt.message_file("cluster").open("a") as stream:
        # At 0: before the errors of the hosts that lost their connection to it.
        MessageWriter(stream).failed(error, killed=True, at=0.0)


if __name__ == "__main__":
    sys.exit(main(Attempt(Path(sys.argv[1]))))
