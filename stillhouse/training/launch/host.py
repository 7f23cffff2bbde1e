"""One host of a training in several processes: runs its torchrun and reports how its ranks ended.

`python -m stillhouse.training.launch.host JOB.json` is the first host, whose messages go to standard output, as those
of the first rank do; with `FOLDER --host N --address IP` it is a host of an attempt on a cluster, whose messages go to
a file of the attempt's folder. The ranks run in sessions of their own, which the guard of this process does not reach;
they end themselves when it dies. Reported is the error of the rank that failed first.
"""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.run import parse_args, run

from stillhouse.processes.exit import announce_parent
from stillhouse.store.atomic import write_atomic
from stillhouse.training.job import LOG_FILE, TrainJob
from stillhouse.training.launch.attempt import Attempt
from stillhouse.training.launch.local import environment, first_host, torchrun_arguments
from stillhouse.training.launch.messages import MessageWriter, exit_reason
from stillhouse.training.launch.process import redirect, run_job_file

_POLL_S: Final = 0.5


def run_attempt(folder: Path, host: int, address: str) -> int:
    """Train one host's part of an attempt; return the exit code."""
    attempt = Attempt(folder)
    if not attempt.job_file.is_file():
        sys.stderr.write(
            f"{attempt.job_file} is not there: this host does not see the store of the flow. Mount it here under the "
            "same path\n"
        )
        return 1
    job = TrainJob.model_validate_json(attempt.job_file.read_bytes())
    os.environ.update(environment(job))
    redirect(1, attempt.message_file(str(host)))
    if job.runtime.num_processes * job.runtime.num_hosts == 1:
        return run_job_file(attempt.job_file)
    rendezvous = meet(attempt, host, job.runtime.num_hosts, address) if job.runtime.num_hosts > 1 else ""
    return _run_ranks(job, host, attempt.job_file, rendezvous)


def meet(attempt: Attempt, host: int, num_hosts: int, address: str) -> str:
    """Wait for all hosts, which a cluster may start far apart; return `host:port` of the first one."""
    markers = [attempt.folder / f"host-{number}.here" for number in range(num_hosts)]
    rendezvous = attempt.folder / "rendezvous"
    write_atomic(markers[host], b"")
    if host == 0:
        while not all(marker.exists() for marker in markers):
            time.sleep(_POLL_S)
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
        write_atomic(rendezvous, f"{address}:{port}".encode())
    while not rendezvous.exists():
        time.sleep(_POLL_S)
    return rendezvous.read_text()


def _run_ranks(job: TrainJob, host: int, job_file: Path, rendezvous: str) -> int:
    messages = MessageWriter(sys.stdout)
    # Only torchrun's own messages: standard output carries those of the ranks.
    redirect(2, job.work_dir / (LOG_FILE if host == 0 else f"train-host{host}.log"))
    announce_parent()
    try:
        run(parse_args(torchrun_arguments(job, host, job_file, rendezvous)))
        return 0
    except ChildFailedError as error:
        (reason, killed), exit_code = failure_reason(error.failures), 1
    except SignalException as error:
        reason = f"{job.method}: stopped by {error.sigval.name}; the same command continues from the last checkpoint"
        killed, exit_code = True, 128 + error.sigval
    # The parent stops this process as soon as it has read the message.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    messages.failed(reason, killed=killed)
    return exit_code


def failure_reason(failures: Mapping[int, ProcessFailure]) -> tuple[str, bool]:
    """Return why the ranks ended, and whether something from outside ended them.

    A killed rank leaves no message, but the ranks that lose their connection to it do, and torchrun ends the others by
    SIGTERM. So a kill counts before all messages, and among messages the earliest.
    """
    for rank, failure in failures.items():
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            return f"rank {rank} ended without a result ({exit_reason(failure.exitcode)})", True
    messages = [failure.error_file_data for failure in failures.values() if "at" in failure.error_file_data]
    if messages:
        first = min(messages, key=lambda message: message["at"])
        return first["message"], first["killed"]
    rank, failure = min(failures.items())
    return f"rank {rank} ended without a result ({exit_reason(failure.exitcode)})", failure.exitcode < 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path, help="a job's file, or the folder of an attempt on a cluster")
    parser.add_argument("--host", type=int)
    parser.add_argument("--address")
    given = parser.parse_args()
    if given.host is not None:
        sys.exit(run_attempt(given.path, given.host, given.address))
    job = TrainJob.model_validate_json(given.path.read_bytes())
    sys.exit(_run_ranks(job, 0, given.path, first_host()))
