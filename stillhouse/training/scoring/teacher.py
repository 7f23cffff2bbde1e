"""The teacher that scores rows: a model in this process or behind a server, with its ledger."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.refs import model_identity
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyTeacher, SftConfig
from stillhouse.inference.budget import Budget
from stillhouse.inference.scoring.ledger import open_ledger
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.store import ArtifactStore
from stillhouse.training.job import TrainJob
from stillhouse.training.on_policy.teachers.local import LocalTeacher, load_local_model
from stillhouse.training.on_policy.teachers.packed import ScoringSettings
from stillhouse.training.on_policy.teachers.probe import probe_local
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.training.on_policy.teachers.shared_ids import SharedIds
from stillhouse.training.on_policy.teachers.teacher import Teacher
from stillhouse.training.on_policy.teachers.vocabulary import num_shared_ids
from stillhouse.types import Sample

Score = Callable[[Sequence[Sample]], list[SequenceScores]]
"""The teacher's scores of the targets of samples; what is in the ledger is not scored again."""


@contextmanager
def scoring_teacher(
    job: TrainJob, tokenizer: PreTrainedTokenizerBase, device: torch.device, say: Callable[[str | None], None]
) -> Iterator[Score]:
    """Yield the scores by the teacher of the job's soft targets; `say` shows what is waited for, None when it is over.

    Raises:
        ConfigError: a local teacher cannot be loaded, or a served one ignores the temperature.
        TrainingError: it has another vocabulary than the rows.
        EndpointError: its server does not answer, or gives no scores.
        StoreError: the ledger cannot be read or written.
    """
    sft = job.sft
    assert sft is not None
    settings = sft.scoring_teacher(job.teacher_ref)
    assert settings is not None
    if settings.kind == "local":
        store = ArtifactStore(job.runtime.store, job.runtime.scratch)
        with _local(settings, sft, job.student.dtype, tokenizer, device, store) as score:
            yield score
        return
    served = connect(
        settings.model_copy(update={"top_k": sft.top_k}),
        kl_coef=1.0,
        temperature=sft.soft_temperature,
        tokenizer=tokenizer,
        alignment=None,
        runtime=job.runtime,
        budget=Budget(job.budget, None),
        say=say,
    )
    with closing(served):
        yield partial(_scores, served)


@contextmanager
def _local(
    settings: OnPolicyTeacher,
    sft: SftConfig,
    student_dtype: str,
    tokenizer: PreTrainedTokenizerBase,
    device: torch.device,
    store: ArtifactStore,
) -> Iterator[Score]:
    ref = settings.model
    assert ref is not None
    num_shared = num_shared_ids(ref, load_tokenizer(ref), tokenizer)
    is_4bit = settings.dtype == "4bit"
    dtype = student_dtype if is_4bit or settings.dtype == "auto" else settings.dtype
    device = device if settings.device is None else torch.device(settings.device)
    model = load_local_model(ref, settings, device, getattr(torch, dtype))
    scoring = ScoringSettings(settings.name, 1.0, sft.soft_temperature, settings.batch_tokens, sft.top_k)
    shared = None if num_shared is None else SharedIds(settings.name, num_shared, tokenizer)
    teacher = LocalTeacher(scoring, model, device, alignment=shared)
    known_by = {"kind": "local", "model": model_identity(ref), "dtype": dtype, "temperature": sft.soft_temperature}
    if num_shared is not None:
        known_by["num_shared"] = num_shared
    probed = probe_local(teacher, tokenizer)
    with open_ledger(store, {**known_by, "quantised": is_4bit}, probed, sft.top_k) as ledger:
        yield partial(ledger.completed, score=partial(_scores, teacher))


def _scores(teacher: Teacher, samples: Sequence[Sample]) -> list[SequenceScores]:
    return teacher.start(samples).result()
