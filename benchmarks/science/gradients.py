"""How much a method's gradient differs from batch to batch while the student stays as it is."""

import json
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.science.training import Training
from stillhouse.store.atomic import write_atomic
from stillhouse.training.loop.passes import Passes
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.load import load_on_policy
from stillhouse.training.ranks import Ranks


def gradient_noise(training: Training, num_batches: int) -> float:
    """The mean squared distance of a batch's gradient from the mean of all, over the squared norm of that mean.

    Where the training has as many prompts as a step takes, all batches are of the same prompts, sampled anew: a noise
    of 1 means that the noise of a batch is as large as what it says.

    Args:
        training: on-policy; its start is what stays as it is.
        num_batches: resamples.

    Raises:
        StillhouseError: as a training of its kind does.
    """
    with tempfile.TemporaryDirectory() as name, ExitStack() as resources:
        job = training.job(Path(name))
        device = torch.device("cpu")
        ranks = Ranks.single(device)
        student = load_student(job.student_ref, job.student, device, job.trainer.seed)
        method = load_on_policy(job, student, NoListener(), nullcontext, resources)
        passes = Passes(student, ranks, job.trainer)
        gradients = []
        for step in range(num_batches):
            passes.backward(method.batch(step).samples, method)
            gradients.append(_taken(student))
    stacked_BP = torch.stack(gradients)
    mean_P = stacked_BP.mean(dim=0)
    return ((stacked_BP - mean_P).square().sum(dim=1).mean() / mean_P.square().sum()).item()


def kept_gradient_noise(training: Training, num_batches: int, store: Path) -> float:
    """The same, from a file in `store` where it was measured before."""
    path = store / f"{training.digest({})}-{num_batches}.json"
    if not path.is_file():
        write_atomic(path, json.dumps(gradient_noise(training, num_batches)).encode())
    return json.loads(path.read_bytes())


def _taken(student: Student) -> Tensor:
    """All gradients as one vector of P numbers; none are left behind."""
    parts = []
    for _, parameter in student.trained_parameters():
        assert parameter.grad is not None
        parts.append(parameter.grad.flatten().clone())
        parameter.grad = None
    return torch.cat(parts)
