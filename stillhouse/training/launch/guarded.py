"""A training in a guarded process of its own: its memory is returned, and it never outlives the flow. Free of torch."""

from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.progress.state import Progress
from stillhouse.training.job import JOB_FILE, TrainJob
from stillhouse.training.launch.messages import GRACE_S, follow
from stillhouse.types import JsonObject


def train_guarded(job: TrainJob, progress: Progress) -> JsonObject:
    """Trains in a child of this process, which should be called from the main thread: signals reach that.

    Raises:
        TrainingError: the child failed; the message holds its last words.
        TrainingKilled: something from outside ended it.
    """
    arguments = [str(job.work_dir / JOB_FILE)]
    with GuardedProcess("stillhouse.training", arguments, environment(job), grace_s=GRACE_S) as process:
        return follow(process, job, progress)


def environment(job: TrainJob) -> dict[str, str]:
    """Variables of a training process, on top of the flow's."""
    # Tokenizers warns and slows down when a process that used its threads forks.
    variables = {"TOKENIZERS_PARALLELISM": "false"}
    if job.runtime.num_threads is not None:
        variables["OMP_NUM_THREADS"] = str(job.runtime.num_threads)
    return variables
