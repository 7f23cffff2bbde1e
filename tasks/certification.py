"""Certification: a form of a student in its own runtime, compared with the student on held-out prompts."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from stillhouse.chat.refs import GENERATION_FILE, gguf_in, model_identity
from stillhouse.config import DistillConfig, RuntimeConfig
from stillhouse.errors import ConfigError, InputError
from stillhouse.evaluation.comparison import prompt_values
from stillhouse.evaluation.paired import paired_difference
from stillhouse.evaluation.sampling import evaluation_rollouts
from stillhouse.inference.local_server import served_model
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.inference.vllm.environment import vllm_python, vllm_version
from stillhouse.publishing.certificate import (
    MAX_KL,
    MAX_KL_OF_FEW_BITS,
    Certificate,
    Check,
    answer_check,
    fact_checks,
    measured_check,
    prompt_checks,
    token_checks,
)
from stillhouse.publishing.facts import facts_of
from stillhouse.publishing.gguf_header import header_of
from stillhouse.publishing.next_tokens import compare_next_tokens, score
from stillhouse.publishing.rendering import compare_prompts
from stillhouse.store.artifacts import artifact_in
from stillhouse.store.records import read_metadata, read_prompts
from stillhouse.store.runs import RunRecord
from stillhouse.training.results.adapter import ADAPTER_FILE
from stillhouse.types import Model, Prompt, PromptMetadata, Sample, Trajectory
from tasks.prompts import metadata_file, prompts_file
from tasks.run.interruption import run_until_done
from tasks.sampling import check_failures, sample
from tasks.trial import context_of

Engine = Literal["transformers", "vllm"]
_NUM_SCORED: Final = 64
"""Answers of the student whose tokens are compared."""
_MEASURED: Final = ("accuracy", "valid_tool_call_share")


@dataclass(frozen=True)
class Subject:
    """A student, and what its forms are compared on."""

    folder: Path
    config: DistillConfig
    """Of its run, with greedy sampling."""
    prompts: Sequence[Prompt]
    metadata: Mapping[str, PromptMetadata]

    @classmethod
    def of(cls, folder: Path, run: RunRecord | None, num_prompts: int, store: str) -> "Subject":
        """Return the student that a run trained; raise InputError where there is no run, or it held nothing out."""
        prompts = [] if run is None else [artifact_in(Path(uri)) for uri in run.artifacts.get("prompts", ())]
        held_out = [artifact for artifact in prompts[2:] if artifact is not None]
        if run is None or not run.config or len(held_out) != 2 or not held_out[0].num_rows:
            raise InputError(
                f"{folder}: a form is compared with its student on held-out prompts, and none are known. Name the "
                "student by its run, one of this version that held prompts out (prompts.held_out_fraction)"
            )
        config = DistillConfig.model_validate(run.config)
        greedy = config.evaluation.model_copy(update={"temperature": 0.0, "num_samples": 1})
        rows = list(read_prompts(prompts_file(held_out[0])))[:num_prompts]
        return cls(
            folder.absolute(),
            config.model_copy(
                update={"evaluation": greedy, "runtime": config.runtime.model_copy(update={"store": store})}
            ),
            rows,
            read_metadata(metadata_file(held_out[1])),
        )

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        return self.sampled(self.folder, "transformers")

    def sampled(self, model: Path, engine: Engine) -> list[Trajectory]:
        """Return greedy trajectories of a model on the prompts; raises as `tasks.sampling.sample`."""
        identity = model_identity(str(model))
        rollouts = evaluation_rollouts(self.config.evaluation, self.config.rollouts.system_prompt, record_tokens=False)
        config = self.config.model_copy(update={"runtime": self.runtime(engine)})
        with context_of(config) as context:
            known = Model(name=model.name, ref=str(model), fingerprint=f"{identity}@{engine}")
            stage = f"certify {model.name}"
            done = run_until_done(
                sample(list(self.prompts), known, rollouts, config.tools, context, stage=stage, part=identity)
            )
        check_failures(done, config.runtime.failure_budget)
        return done.trajectories

    def runtime(self, engine: Engine) -> RuntimeConfig:
        return self.config.runtime.model_copy(update={"engine": engine})

    @cached_property
    def samples(self) -> list[Sample]:
        """Return some of its trajectories as its template renders them, with its own tokens as targets."""
        from stillhouse.chat.samples import render_samples
        from stillhouse.chat.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(str(self.folder))
        rendered = [
            one for row in self.trajectories[:_NUM_SCORED] for one in render_samples(tokenizer, row.messages, row.tools)
        ]
        return [Sample(one.token_ids, one.loss_mask, "") for one in rendered if any(one.loss_mask)]

    @cached_property
    def own_scores(self) -> list[SequenceScores]:
        return self.scores(self.folder, "transformers")

    def scores(self, model: Path, engine: Engine) -> list[SequenceScores]:
        """Return what a model thinks of the student's own tokens."""
        with served_model(str(model), self.runtime(engine)) as served:
            return score(served.url, str(model), self.samples)


def certify(subject: Subject, form: Path, engine: Engine) -> Certificate:
    """Compare a form's folder with its student: what it says first, then what it computes, if that is right.

    Raises ConfigError if the form's runtime is not there or cannot load it, and as `tasks.sampling.sample`.
    """
    form = form.absolute()
    gguf = gguf_in(form)
    facts = (facts_of(folder, ends_of(subject.folder)) for folder in (subject.folder, form))
    checks = [*fact_checks(*facts), *prompt_checks(compare_prompts(subject.folder, form, subject.trajectories))]
    if not any(check.problem for check in checks):
        is_exact = gguf is None or header_of(gguf).is_exact
        checks += _computed(subject, form, engine, max_kl=MAX_KL if is_exact else MAX_KL_OF_FEW_BITS)
    student, name = model_identity(str(subject.folder)), (gguf or form).name
    return Certificate(student, name, _runtime(subject, "llama-cpp-python" if gguf else engine), tuple(checks))


def _runtime(subject: Subject, package: str) -> str:
    """Return the package that runs a form, with its version."""
    python = vllm_python(subject.runtime("vllm")) if package == "vllm" else None
    return f"{package} {version(package) if python is None else vllm_version(python)}"


def _computed(subject: Subject, form: Path, engine: Engine, *, max_kl: float) -> Iterator[Check]:
    seen = subject.scores(form, engine)
    found = compare_next_tokens(subject.own_scores, seen)
    yield from token_checks(found, max_kl, partial(_cause, subject, seen, found.kl))
    trajectories = subject.sampled(form, engine)
    pairs = list(zip(subject.trajectories, trajectories, strict=True))
    yield answer_check(sum(a.messages == b.messages for a, b in pairs), len(pairs))
    ours, theirs = (prompt_values(rows, subject.metadata, {}) for rows in (trajectories, subject.trajectories))
    for metric in _MEASURED:
        if (difference := paired_difference(ours.get(metric, {}), theirs.get(metric, {}))) is not None:
            yield measured_check(metric.replace("_", " "), difference)


def ends_of(student: Path) -> dict[int, str]:
    """Return the tokens that end a turn of a student, with their texts."""
    from transformers import GenerationConfig

    from stillhouse.chat.next_turn import stop_token_ids
    from stillhouse.chat.tokenizer import load_tokenizer

    named = (student / GENERATION_FILE).is_file()
    tokenizer = load_tokenizer(str(student))
    ends = stop_token_ids(tokenizer, GenerationConfig.from_pretrained(student) if named else None)
    return {token: str(tokenizer.convert_ids_to_tokens(token)) for token in ends}


def _cause(subject: Subject, form: Sequence[SequenceScores], kl: float) -> str | None:
    """Return how an adapter was merged wrongly, where that explains a difference of `kl`."""
    if not (subject.folder / ADAPTER_FILE).is_file():
        return None
    for factor, words in ((2.0, "its adapter is merged twice"), (0.0, "its adapter is not in it")):
        with _scaled(subject.folder, factor) as other:
            if compare_next_tokens(subject.scores(other, "transformers"), form).kl < kl / 10:
                return words
    return None


@contextmanager
def _scaled(student: Path, factor: float) -> Iterator[Path]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        for path in student.iterdir():
            if path.name != ADAPTER_FILE:
                os.symlink(path, folder / path.name)
        settings = json.loads((student / ADAPTER_FILE).read_bytes())
        settings["lora_alpha"] *= factor
        (folder / ADAPTER_FILE).write_text(json.dumps(settings), encoding="utf-8")
        yield folder


@contextmanager
def as_folder(form: Path, student: Path) -> Iterator[Path]:
    """Yield a form as a folder: a GGUF file beside the student's tokenizer, with which messages become tokens."""
    if not form.exists():
        raise ConfigError(f"{form}: there is no such file or folder; expected a GGUF file, or a folder of weights")
    if form.is_dir():
        yield form
        return
    with TemporaryDirectory() as name:
        copy_tokenizer(student, Path(name))
        os.symlink(form.absolute(), Path(name) / form.name)
        yield Path(name)


def copy_tokenizer(student: Path, folder: Path) -> None:
    """Write the student's tokenizer and ends into a folder without weights."""
    from stillhouse.chat.tokenizer import load_tokenizer

    load_tokenizer(str(student)).save_pretrained(folder)
    if (student / GENERATION_FILE).is_file():
        shutil.copyfile(student / GENERATION_FILE, folder / GENERATION_FILE)
