"""`python -m stillhouse.training.launch.host FOLDER --host N --address IP`: one host of a training on a cluster.

It runs in the folder the flow ran in, and answers in a file of the attempt's folder, since nobody may be there to
listen. Where several hosts train together, each waits until all are there: a cluster may start them far apart.
"""

import argparse
import os
import socket
import sys
import time
from pathlib import Path
from typing import Final

from stillhouse.store.atomic import write_atomic
from stillhouse.training.job import LOG_FILE, TrainJob
from stillhouse.training.launch.attempt import Attempt, attempt_in
from stillhouse.training.launch.guarded import environment

_LOOK_S: Final = 0.5


def main(folder: Path, host: int, address: str) -> int:
    """Trains this host's part; the exit code."""
    attempt = attempt_in(folder)
    if not attempt.job_file.is_file():
        sys.stderr.write(
            f"{attempt.job_file} is not there: this host does not see the store of the flow. Mount it here under the "
            "same path\n"
        )
        return 1
    job = TrainJob.model_validate_json(attempt.job_file.read_bytes())
    os.environ.update(environment(job))
    _answer_in(attempt.answer_file(str(host)))
    if job.runtime.num_processes * job.runtime.num_hosts == 1:
        from stillhouse.training.__main__ import main as train_alone

        return train_alone(attempt.job_file, None)
    rendezvous = meet(attempt, host, job.runtime.num_hosts, address) if job.runtime.num_hosts > 1 else None
    from stillhouse.training.launch.agent import run_ranks
    from stillhouse.training.launch.torchrun import torchrun_arguments

    log = LOG_FILE if host == 0 else f"train-host{host}.log"
    return run_ranks(job, torchrun_arguments(job, host, attempt.job_file, rendezvous), job.work_dir / log)


def meet(attempt: Attempt, host: int, num_hosts: int, address: str) -> str:
    """Waits for all hosts; `host:port` of the first one.

    Args:
        attempt: which all hosts take part in.
        host: number of this one.
        num_hosts: how many there are.
        address: at which the others reach this one.
    """
    write_atomic(attempt.here_file(host), b"")
    if host == 0:
        while not all(attempt.here_file(other).exists() for other in range(num_hosts)):
            time.sleep(_LOOK_S)
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
        write_atomic(attempt.rendezvous_file, f"{address}:{port}".encode())
    while not attempt.rendezvous_file.exists():
        time.sleep(_LOOK_S)
    return attempt.rendezvous_file.read_text()


def _answer_in(path: Path) -> None:
    """Sends standard output to a file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.close(handle)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", type=int, required=True)
    parser.add_argument("--address", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    sys.exit(main(given.folder, given.host, given.address))
