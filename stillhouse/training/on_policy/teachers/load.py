"""Loads the teachers of a config and checks each before sampling starts."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Final

import torch
from transformers import GenerationConfig

from stillhouse.config import BudgetConfig, OnPolicyConfig, OnPolicyTeacher, RuntimeConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.budget import Budget
from stillhouse.training.model.blocks import pays_to_compile
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.teachers.local import LocalTeacher, load_local_model
from stillhouse.training.on_policy.teachers.packed import ScoringSettings
from stillhouse.training.on_policy.teachers.probe import probe_local
from stillhouse.training.on_policy.teachers.reading import Reading, reading_of
from stillhouse.training.on_policy.teachers.router import Route, TeacherRouter
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.training.on_policy.teachers.teacher import AskedByFirst, Teacher
from stillhouse.training.on_policy.teachers.vocabulary import stop_token_warning
from stillhouse.training.ranks import Ranks

logger = logging.getLogger(__name__)

_ONLY_TEACHER: Final = "teacher"

Averaged = Callable[[], AbstractContextManager[object]]


def load_teachers(
    config: OnPolicyConfig,
    student: Student,
    *,
    default_ref: str | None,
    averaged: Averaged,
    runtime: RuntimeConfig,
    budget: BudgetConfig = BudgetConfig(),  # noqa: B008
    say: Callable[[str | None], None] = lambda text: None,
    ranks: Ranks | None = None,
) -> TeacherRouter:
    """Return the teachers of `config`, or `default_ref` if it names none; none if nothing is scored.

    Within `averaged` the student has its EMA weights, and `say` shows what is waited for; None when it is over. Where
    there are several `ranks`, they share local teachers, and the first alone asks those on servers.

    Raises:
        ConfigError: a teacher cannot be loaded or does not support a setting.
        TrainingError: a teacher does not share the student's vocabulary.
        EndpointError: a teacher's server does not answer, or without log-probabilities.
    """
    if not config.needs_teacher:
        return TeacherRouter(())
    ranks = ranks or Ranks.single(student.device)
    loading = _Loading(config, student, averaged, runtime, Budget(budget, None), say, ranks)
    with ExitStack() as opened:
        routes = []
        for settings in config.teachers or (_only_teacher(config, default_ref),):
            kl_coef = config.kl_coef if settings.kl_coef is None else settings.kl_coef
            route = Route(settings.name, None, settings.routes) if kl_coef == 0.0 else loading.route(settings, kl_coef)
            if route.teacher is not None:
                opened.callback(route.teacher.close)
            routes.append(route)
        teachers = TeacherRouter(routes, route_by=config.route_by, unrouted=config.unrouted)
        opened.pop_all()
    return teachers


def _only_teacher(config: OnPolicyConfig, default_ref: str | None) -> OnPolicyTeacher:
    ref = config.teacher or default_ref
    if ref is None:
        raise ConfigError(
            f"on_policy.kl_coef = {config.kl_coef}, but there is no teacher that scores tokens: name a local model in "
            "on_policy.teacher, list teachers in on_policy.teachers, or set on_policy.algorithm to `rewards`"
        )
    return OnPolicyTeacher(name=_ONLY_TEACHER, model=ref)


@dataclass(frozen=True, slots=True)
class _Loading:
    """Loads one teacher after another."""

    config: OnPolicyConfig
    student: Student
    averaged: Averaged
    runtime: RuntimeConfig
    budget: Budget
    say: Callable[[str | None], None]
    ranks: Ranks

    def route(self, settings: OnPolicyTeacher, kl_coef: float) -> Route:
        reading = reading_of(settings, self.student.tokenizer, self.config)
        teacher: Teacher
        match settings.kind:
            case "base" | "ema":
                teacher = self._self_teacher(settings, kl_coef, reading)
            case "local":
                assert settings.model is not None
                teacher = self._local(settings, settings.model, kl_coef, reading)
            case "vllm" | "sglang" | "echo" if not self.ranks.is_first:
                teacher = AskedByFirst(settings.name, kl_coef)
            case "vllm" | "sglang" | "echo":
                self._warn_of_stop_tokens(settings, reading, None)
                is_other = settings.alignment == "bytes" and reading.tokenizer is not None
                teacher = connect(
                    settings,
                    kl_coef,
                    self.config.temperature,
                    reading.tokenizer if is_other else self.student.tokenizer,
                    reading.alignment,
                    self.runtime,
                    # Recorded rollouts are trained on by a student that finds other tokens probable.
                    divergence=self.config.divergence if self.config.source != "rollouts" else (),
                    budget=self.budget,
                    say=self.say,
                )
        if isinstance(teacher, LocalTeacher):
            probe_local(teacher, reading.tokenizer or self.student.tokenizer)
        return Route(settings.name, teacher, settings.routes, reading.views)

    def _warn_of_stop_tokens(
        self, settings: OnPolicyTeacher, reading: Reading, generation: GenerationConfig | None
    ) -> None:
        if reading.tokenizer is None or settings.alignment == "bytes":
            return
        student = self.student
        warning = stop_token_warning(
            student.tokenizer,
            reading.tokenizer,
            student.causal_lm.generation_config,
            generation,
            teacher_name=settings.name,
            exchange=reading.exchange,
        )
        if warning:
            logger.warning("%s", warning)

    def _self_teacher(self, settings: OnPolicyTeacher, kl_coef: float, reading: Reading) -> Teacher:
        student = self.student
        if settings.alignment == "bytes":
            raise ConfigError(
                f"teacher {settings.name!r} of kind {settings.kind!r} has the student's tokens; drop `alignment`"
            )
        has_adapter = student.model is not student.causal_lm
        if settings.kind == "base" and not has_adapter:
            # Full training changes the base, so the teacher is a separate copy.
            return self._local(settings, student.base_ref, kl_coef, reading)
        weights = self.averaged if settings.kind == "ema" else student.model.disable_adapter
        return SelfTeacher(self._scoring(settings, kl_coef), student, weights, self.ranks)

    def _scoring(self, settings: OnPolicyTeacher, kl_coef: float) -> ScoringSettings:
        return ScoringSettings(
            settings.name, kl_coef, self.config.temperature, settings.batch_tokens, settings.top_k or 0
        )

    def _local(self, settings: OnPolicyTeacher, ref: str, kl_coef: float, reading: Reading) -> LocalTeacher:
        student = self.student
        is_shared = self.ranks.size > 1 and settings.dtype != "4bit"
        device = self.ranks.device if settings.device is None else self._device(settings.name, settings.device)
        dtype = student.dtype if settings.dtype in ("auto", "4bit") else getattr(torch, settings.dtype)
        model = load_local_model(ref, settings, torch.device("cpu") if is_shared else device, dtype)
        self._warn_of_stop_tokens(settings, reading, model.generation_config)
        rows = len(model.get_output_embeddings().weight)
        is_same_size = rows == len(student.head.weight)
        num_tokens = max(student.tokenizer.get_vocab().values()) + 1
        vocabulary = rows if is_same_size else min(rows, num_tokens)
        return LocalTeacher(
            self._scoring(settings, kl_coef),
            model,
            device,
            vocabulary=min(vocabulary, reading.num_shared or vocabulary),
            exchanged=None if reading.exchange is None else reading.exchange.pair,
            num_passes=self.config.num_passes,
            alignment=reading.alignment,
            # 4-bit layers break the graph at every layer.
            compiled=settings.dtype != "4bit" and pays_to_compile(self.config.trainer, self.config.num_steps, device),
            ranks=self.ranks if is_shared else None,
        )

    def _device(self, teacher: str, name: str) -> torch.device:
        if self.ranks.size > 1:
            raise ConfigError(
                f"teacher {teacher!r}: device {name!r}, but {self.ranks.size} processes train together and share a "
                "local teacher over their own devices. Leave `device` out, or have a server on that device score: "
                "kind `vllm` or `sglang`"
            )
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(
                f"teacher {teacher!r}: device {name!r} cannot be used: {error}. Name one that this machine has, such "
                "as `cpu`, or leave `device` out to take the student's"
            ) from error
        return device
