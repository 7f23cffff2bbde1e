"""A teacher of on-policy distillation, and which names and addresses rule a model out as one."""

import re
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from stillhouse.config.secrets import VariableName
from stillhouse.config.section import ChatTemplateKwargs, Section, later_field

TeacherKind = Literal["local", "base", "ema", "snapshot", "vllm", "sglang", "echo"]

_STUDENT_KINDS: Final[frozenset[TeacherKind]] = frozenset({"base", "ema", "snapshot"})
_SERVED_KINDS: Final[frozenset[TeacherKind]] = frozenset({"vllm", "sglang", "echo"})
_SERVER_FIELDS: Final[tuple[str, ...]] = ("api_key_env", "max_in_flight", "request_timeout_s")
_MODEL_FIELDS: Final[tuple[str, ...]] = ("dtype", "quantised", "device", "offload")


class OnPolicyTeacher(Section):
    """A teacher that scores the tokens which the student sampled."""

    name: str = Field(pattern=r"^[\w.-]+$")
    """Name in its metrics: `teacher_kl/NAME`."""
    kind: TeacherKind = "local"
    """A model in this process (`local`), the student before training (`base`), the running mean of the student's
    weights (`ema`, needs ema_decay), the student as it was every so many steps (`snapshot`), or a server: vLLM, SGLang,
    or completions with `echo` in OpenAI's form."""
    model: str | None = None
    """Model ref, or the model's name on the server; `base`, `ema` and `snapshot` have none."""
    refresh_every_steps: int | None = later_field(None, ge=1)
    """Optimiser steps after which a `snapshot` takes the student's present weights; it begins with those the training
    starts from. Few steps follow the student closely, many hold it to what it was."""
    base_url: str | None = None
    """Address of the server, such as `http://127.0.0.1:8000/v1`."""
    api_key_env: VariableName | None = None
    """Name of the environment variable that holds the server's key; None sends none."""
    top_k: int | None = later_field(None, ge=1)
    """Most probable tokens that a vLLM or SGLang server gives at each sampled token, for `divergence`, or that any
    teacher gives for on_policy.source `rollouts`; the others count as one. 20 is the most that vLLM gives unless it is
    started with a higher --max-logprobs; the more, the nearer to the whole distribution."""
    kl_coef: float | None = Field(default=None, ge=0.0)
    """Factor of this teacher's KL; None takes on_policy.kl_coef. For one that only holds the student near, such as
    `base`, try rnow's 0.01 to 0.1."""
    routes: tuple[str, ...] = ()
    """Values of on_policy.route_by whose prompts it scores; empty scores all. Name a teacher for each domain, such as
    one for `math` and one for `code`."""
    hint: str | None = None
    """Jinja template of what this teacher alone reads, put before the text of the last user message: a solution or a
    demonstration. It sees `expected_answer`, `tag` and every key of the prompt's metadata."""
    alignment: Literal["ids", "bytes"] = "ids"
    """How tokens are compared: by id, which needs one vocabulary, or by their bytes."""
    template: Literal["student", "own"] = later_field("student")
    """Whose chat template renders what a teacher of the student's vocabulary reads. Try `own` where the student has
    another template than a chat teacher, such as the `User: ... Assistant:` of a base model: in that form the teacher's
    log-probabilities are off by tenths of a nat a token or more. End-of-turn tokens are then exchanged. Not with
    `alignment: bytes`, which always reads by the teacher's template."""
    chat_template_kwargs: ChatTemplateKwargs = later_field({})
    """With `template: own` or `alignment: bytes`, values for variables of its own chat template, such as
    `enable_thinking: false`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type a local teacher computes in; `auto` takes the student's. `bfloat16` halves its memory beside a student in
    float32."""
    quantised: bool = False
    """Hold a local teacher's weights in 4 bits (CUDA and the extra `quantised`): a quarter of the memory of bfloat16,
    slightly other log-probabilities."""
    device: str | None = None
    """Device of a local teacher, such as `cuda:1`; None takes the student's. A second GPU, where there is one, leaves
    the first one's memory to the student."""
    offload: bool = False
    """Keep a local teacher in host memory while it does not score. Each batch waits for it: for teachers that do not
    fit beside the student."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Most tokens of one forward pass, or of one request to a server. Halve it when the teacher or its server runs out
    of memory."""
    max_in_flight: int = Field(default=8, ge=1)
    """Requests to a server at once. Raise it while the server's GPU is not busy."""
    request_timeout_s: float = Field(default=120.0, gt=0.0)
    """Longest wait for one response of a server in seconds. Raise it for long trajectories or a busy server."""

    @property
    def is_local(self) -> bool:
        """Whether its full distribution is available, not only log-probabilities of some tokens."""
        return self.kind not in _SERVED_KINDS

    @property
    def is_student(self) -> bool:
        """Whether it is the student with other weights."""
        return self.kind in _STUDENT_KINDS

    @property
    def reads_own_template(self) -> bool:
        """Whether its own chat template renders what it reads."""
        return self.template == "own" or self.alignment == "bytes"

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        is_served = not self.is_local
        needs_model = not self.is_student
        if needs_model and self.model is None:
            raise ValueError(f"teacher {self.name!r} of kind {self.kind!r} needs `model`")
        if not needs_model and self.model is not None:
            raise ValueError(f"teacher {self.name!r} of kind {self.kind!r} is the student itself; leave out `model`")
        if (self.kind == "snapshot") != (self.refresh_every_steps is not None):
            raise ValueError(
                f"teacher {self.name!r} of kind {self.kind!r} "
                + ("needs" if self.kind == "snapshot" else "keeps its weights; leave out")
                + " `refresh_every_steps`"
            )
        if is_served != (self.base_url is not None):
            raise ValueError(
                f"teacher {self.name!r} of kind {self.kind!r} "
                + ("needs `base_url`" if is_served else "has no server; leave out `base_url`")
            )
        return self

    @model_validator(mode="after")
    def _has_a_template_of_its_own(self) -> Self:
        if self.template == "own" and self.is_student:
            raise ValueError(
                f"teacher {self.name!r} of kind {self.kind!r} is the student and has its chat template; leave out "
                "`template`"
            )
        if self.template == "own" and self.alignment == "bytes":
            raise ValueError(
                f"teacher {self.name!r} with `alignment: bytes` reads by its own chat template anyway; leave out "
                "`template`"
            )
        if self.chat_template_kwargs and not self.reads_own_template:
            raise ValueError(
                f"teacher {self.name!r} reads the student's tokens: set student.chat_template_kwargs, or `template: "
                "own` for a teacher with a chat template of its own"
            )
        return self

    @model_validator(mode="after")
    def _gives_ids_of_its_top_k(self) -> Self:
        if self.top_k is not None and (self.kind == "echo" or self.alignment == "bytes"):
            raise ValueError(
                f"teacher {self.name!r} has a top_k, but kind {self.kind!r} with alignment {self.alignment!r} gives no "
                "ids of the student's vocabulary; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _has_nothing_of_another_kind(self) -> Self:
        unused = _SERVER_FIELDS if self.is_local else _MODEL_FIELDS
        if self.kind in ("ema", "snapshot"):
            unused += _MODEL_FIELDS
        fields = type(self).model_fields
        misplaced = [name for name in unused if getattr(self, name) != fields[name].default]
        if misplaced:
            raise ValueError(
                f"teacher {self.name!r} of kind {self.kind!r} has no use for what is set here: leave out "
                f"{', '.join(misplaced)}"
            )
        return self


_API_ONLY: Final = re.compile(
    # Not gpt-oss, gpt2, gpt-j or gpt-neo, whose weights are open.
    r"(?:(?:openrouter/)?(?:openai|anthropic|google)/)?(?:gpt-(?!oss|2\b|j\b|neo)|chatgpt-|o[134](?:-|$)|claude|gemini)",
    re.IGNORECASE,
)
_API_HOSTS: Final = (
    "api.openai.com",
    "openai.azure.com",
    "api.anthropic.com",
    "generativelanguage.googleapis.com",
    "openrouter.ai",
)


def cannot_score(model: str) -> str | None:
    """Why the model cannot score a student's tokens, as a clause; None if its name does not rule it out.

    OpenAI's chat models return log-probabilities only of tokens that they sampled; Anthropic's and Gemini return none.
    """
    if _API_ONLY.match(model) is None:
        return None
    return f"{model} cannot score what a student sampled: its API gives no log-probabilities of given tokens"


def cannot_score_at(base_url: str) -> str | None:
    """Why models of the server cannot score a student's tokens; None if its address does not rule it out."""
    host = urlsplit(base_url).hostname or ""
    if not any(host == known or host.endswith(f".{known}") for known in _API_HOSTS):
        return None
    return f"{host} cannot score what a student sampled: its API gives no log-probabilities of given tokens"
