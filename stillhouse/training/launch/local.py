"""Trainings on this host: in the flow's own process, in a guarded one, or in several that torchrun starts.

Free of torch, which is imported only where training happens in the flow's process.
"""

import logging
import os
import shlex
import signal
import socket
from pathlib import Path

from stillhouse.errors import StillhouseError, TrainingError, TrainingKilled
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.progress.state import Progress
from stillhouse.training.job import JOB_FILE, TrainJob
from stillhouse.training.launch.messages import GRACE_S, follow
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)


def train_inline(job: TrainJob, progress: Progress) -> JsonObject:
    """Train in this process, for notebooks and debuggers, and restore torch's settings and generators afterwards.

    Nothing is guarded, memory stays with the process, and the log is the process's own. SIGTERM saves a checkpoint and
    is then passed on to its previous handler, which by default ends the process. Errors that are none of Stillhouse's
    become a TrainingError with their cause.
    """
    from stillhouse.training.interruption import Interrupted

    try:
        from stillhouse.training.repeatability import torch_restored
        from stillhouse.training.run_job import run_job

        with torch_restored():
            return run_job(job, progress)
    except Interrupted:
        signal.raise_signal(signal.SIGTERM)
        raise TrainingKilled(
            f"{job.method}: stopped by SIGTERM; a checkpoint was saved, the same command continues"
        ) from None
    except StillhouseError:
        raise
    except Exception as error:
        raise TrainingError(f"{job.method}: {type(error).__name__}: {error}") from error


def train_in_subprocess(job: TrainJob, progress: Progress) -> JsonObject:
    """Train in a child process, so that its memory is returned and it never outlives the flow."""
    return _train_guarded("stillhouse.training", job, progress)


def train_by_torchrun(job: TrainJob, progress: Progress) -> JsonObject:
    """Train in `num_processes` processes of this host, and as many on each of the other hosts.

    The first rank is always on this host: its progress and result are relayed. Hosts share the store, where the job,
    its data and its checkpoints are. The other hosts are waited for: a person or a scheduler starts them with the
    commands that are logged here.
    """
    for host in range(1, job.runtime.num_hosts):
        variables = [f"{name}={value}" for name, value in environment(job).items()]
        arguments = torchrun_arguments(job, host, job.work_dir / JOB_FILE, first_host())
        torchrun = shlex.join(["env", *variables, "python", "-m", "torch.distributed.run", *arguments])
        command = f"cd {shlex.quote(str(Path.cwd()))} && {torchrun}"
        # A warning, since nothing happens before somebody has read it.
        logger.warning("%s waits for the other hosts; on host %d run: %s", job.method, host, command)
    return _train_guarded("stillhouse.training.launch.host", job, progress)


def environment(job: TrainJob) -> dict[str, str]:
    """Return variables of a training process, on top of the flow's."""
    # Tokenizers warns and slows down when a process that used its threads forks.
    return {"TOKENIZERS_PARALLELISM": "false", **job.runtime.thread_variables}


def first_host() -> str:
    """Return `host:port` where torchrun's first host listens: by torch's own variables, or its name and usual port."""
    return f"{os.environ.get('MASTER_ADDR') or socket.getfqdn()}:{os.environ.get('MASTER_PORT') or 29400}"


def torchrun_arguments(job: TrainJob, host: int, job_file: Path, rendezvous: str) -> list[str]:
    """Return torchrun's arguments on one host; of several hosts the first listens at `rendezvous` (`host:port`)."""
    runtime = job.runtime
    location = ["--standalone"]
    if runtime.num_hosts > 1:
        address, _, port = rendezvous.rpartition(":")
        location = ["--nnodes", f"{runtime.num_hosts}", "--node-rank", f"{host}"]
        location += ["--master-addr", address, "--master-port", port]
    return [
        *location,
        *("--nproc-per-node", f"{runtime.num_processes}"),
        *("--log-dir", str(job.work_dir / "torchrun")),
        *("--shutdown-timeout", f"{GRACE_S:.0f}"),
        *("-m", "stillhouse.training", str(job_file)),
    ]


def _train_guarded(module: str, job: TrainJob, progress: Progress) -> JsonObject:
    arguments = [str(job.work_dir / JOB_FILE)]
    with GuardedProcess(module, arguments, environment(job), needs_torch=True, grace_s=GRACE_S) as process:
        return follow(process, job, progress)
