"""A training in several processes, one for each device of this host and of others, started by torchrun. Free of torch.

The first rank is always on this host: its progress and result are relayed. Hosts share the store, where the job, its
data and its checkpoints are.
"""

import logging
import shlex
from pathlib import Path

from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.progress.state import Progress
from stillhouse.training.job import JOB_FILE, TrainJob
from stillhouse.training.launch.guarded import environment
from stillhouse.training.launch.messages import GRACE_S, follow
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)


def train_by_torchrun(job: TrainJob, progress: Progress) -> JsonObject:
    """Trains in `num_processes` processes of this host, and as many on each of the other hosts.

    Those of other hosts are waited for: a person or a scheduler starts them with the commands that are logged here.

    Raises:
        TrainingError: a process failed; the message is that of the one that failed first.
        TrainingKilled: something from outside ended one.
    """
    for host in range(1, job.runtime.num_hosts):
        # A warning, since nothing happens before somebody has read it.
        logger.warning("%s waits for the other hosts; on host %d run: %s", job.method, host, _command(job, host))
    arguments = [str(job.work_dir / JOB_FILE)]
    with GuardedProcess("stillhouse.training.launch.agent", arguments, environment(job), grace_s=GRACE_S) as process:
        return follow(process, job, progress)


def _command(job: TrainJob, host: int) -> str:
    """The shell's line that starts the ranks of another host, in a folder of the same name."""
    variables = [f"{name}={value}" for name, value in environment(job).items()]
    arguments = torchrun_arguments(job, host, job.work_dir / JOB_FILE, job.runtime.rendezvous)
    torchrun = ["env", *variables, "python", "-m", "torch.distributed.run", *arguments]
    return f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join(torchrun)}"


def torchrun_arguments(job: TrainJob, host: int, job_file: Path, rendezvous: str | None) -> list[str]:
    """What torchrun is told on one host.

    Args:
        job: what is trained.
        host: its number; the first one has the number 0 and the first rank.
        job_file: describes the job.
        rendezvous: `host:port` of the first host; not needed where there is but one.
    """
    runtime = job.runtime
    where = ["--standalone"]
    if rendezvous is not None and runtime.num_hosts > 1:
        address, _, port = rendezvous.rpartition(":")
        where = ["--nnodes", f"{runtime.num_hosts}", "--node-rank", f"{host}"]
        where += ["--master-addr", address, "--master-port", port]
    return [
        *where,
        *("--nproc-per-node", f"{runtime.num_processes}"),
        *("--log-dir", str(job.work_dir / "torchrun")),
        *("--shutdown-timeout", f"{GRACE_S:.0f}"),
        *("-m", "stillhouse.training", str(job_file)),
    ]
