"""A teacher of on-policy distillation, and how the student is compared with it."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.secrets import VariableName
from stillhouse.config.section import Address, ChatTemplateKwargs, Section, later_field

TeacherKind = Literal["local", "base", "ema", "vllm", "sglang", "echo"]


class Divergence(Section):
    """One term of an exact divergence between student and teacher over the vocabulary."""

    kind: Literal["reverse_kl", "forward_kl", "jsd", "skewed_reverse_kl", "skewed_forward_kl"] = "reverse_kl"
    """KL(student || teacher), KL(teacher || student), the generalised Jensen-Shannon divergence, or the KL to a mixture
    of both. `reverse_kl` first: it learns what the teacher finds likely; `forward_kl` covers all that the teacher might
    say, `jsd` lies between."""
    weight: float = Field(default=1.0, gt=0.0)
    """Factor of the term. With a single term it acts like a higher learning rate: leave it at 1."""
    beta: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of the teacher in the mixture of `jsd`; 0.5 is the default of TRL's GKD and of ms-swift."""
    skew: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the first distribution of a skewed KL in its mixture with the second; 0.1 is DistiLLM's."""
    top_k: int | None = Field(default=None, ge=1)
    """Compare the k most probable tokens, and all others as one. None compares all, and is exact; with a server it
    compares the tokens that this gives (the teacher's `top_k`). 64 is NeMo-RL's and ROLL's."""
    top_k_of: Literal["teacher", "student"] = "teacher"
    """Whose most probable tokens. `teacher` for `forward_kl`, `student` for `reverse_kl`: the side whose probabilities
    weigh the sum. With a server leave it out."""


class OnPolicyTeacher(Section):
    """A teacher that scores the tokens which the student sampled."""

    name: str = Field(pattern=r"^[\w.-]+$")
    """Name in its metrics: `teacher_kl/NAME`."""
    kind: TeacherKind = "local"
    """A model in this process (`local`); the student before this training, but one with an adapter without it, and so
    without SFT too (`base`); the running mean of the student's weights (`ema`, needs ema_decay); or a server: vLLM,
    SGLang, or completions with `echo` in OpenAI's form."""
    model: str | None = None
    """Model ref, or the model's name on the server; `base` and `ema` have none."""
    base_url: Address | None = None
    """Address of the server, such as `http://127.0.0.1:8000/v1`; None has the run start a vLLM for the model ref, once
    `make vllm` has set it up."""
    api_key_env: VariableName | None = None
    """Name of the environment variable that holds the server's key; None sends none."""
    top_k: int | None = later_field(None, ge=1)
    """Most probable tokens that a vLLM or SGLang server gives at each sampled token, for `divergence`, or that any
    teacher gives for on_policy.source `rollouts`; the others count as one. For a `reverse_kl` it scores as many of the
    student's beside them, where vLLM was started with --enable-scale-out. 20 is the most that vLLM gives unless it is
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
    dtype: Literal["auto", "float32", "bfloat16", "4bit"] = "auto"
    """Type a local teacher computes in; `auto` takes the student's. `bfloat16` halves its memory beside a student in
    float32; `4bit` (CUDA and the extra `quantised`) holds the weights in a quarter of that and computes in the
    student's type, with slightly other log-probabilities."""
    device: str | None = None
    """Device of a local teacher, such as `cuda:1`; None takes the student's. A second GPU, where there is one, leaves
    the first one's memory to the student."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Most tokens of one forward pass, or of one request to a server. Halve it when the teacher or its server runs out
    of memory."""

    @property
    def is_local(self) -> bool:
        """Return whether its full distribution is available, not only log-probabilities of some tokens."""
        return self.kind not in ("vllm", "sglang", "echo")

    @property
    def is_here(self) -> bool:
        """Return whether `model` is a ref: of a model in this process, or behind vLLM that the run starts."""
        return self.kind in ("local", "vllm") and self.base_url is None

    @property
    def is_student(self) -> bool:
        """Return whether it is the student with other weights."""
        return self.kind in ("base", "ema")

    @property
    def reads_own_template(self) -> bool:
        """Return whether its own chat template renders what it reads."""
        return self.template == "own" or self.alignment == "bytes"

    def check_fits(self, divergence: Sequence[Divergence], *, is_recorded: bool) -> None:
        """Raise ValueError if it cannot give what is compared, at each step or `is_recorded` before the first."""
        where = f"teacher {self.name!r} of kind {self.kind!r}"
        gives_all = self.is_local and not is_recorded
        if is_recorded and self.kind == "ema":
            raise ValueError(
                f"{where} changes with the student, and on_policy.source `rollouts` is scored before the first step; "
                "use another teacher, or source `student`"
            )
        if gives_all and self.top_k:
            raise ValueError(
                f"{where} is in this process and compares the whole vocabulary: leave out its top_k, which is for "
                "servers and for on_policy.source `rollouts`"
            )
        if not divergence:
            return
        if self.alignment != "ids" or self.kind == "echo":
            raise ValueError(
                f"{where} with alignment {self.alignment!r} does not give its distribution over the student's "
                "vocabulary, which `divergence` needs; use a teacher of the student's family, local or behind vLLM or "
                "SGLang"
            )
        if gives_all:
            return
        if self.top_k is None:
            raise ValueError(
                f"{where} gives or records the sampled token's probability alone, and `divergence` compares "
                "distributions: set its `top_k`, such as 20 (of vLLM at most its --max-logprobs)"
            )
        for term in divergence:
            if (term.top_k or 0) > self.top_k or (term.top_k and term.top_k_of == "student"):
                raise ValueError(
                    f"a term of `divergence` has top_k {term.top_k} and top_k_of {term.top_k_of!r}, but {where} gives "
                    f"its own {self.top_k} best tokens; leave both out, or use a local teacher"
                )

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> Self:
        needed = {"model": not self.is_student}
        if self.kind != "vllm":
            needed["base_url"] = not self.is_local
        for name, is_needed in needed.items():
            if is_needed != (getattr(self, name) is not None):
                verb = "needs" if is_needed else "has no use for"
                raise ValueError(f"teacher {self.name!r} of kind {self.kind!r} {verb} `{name}`")
        return self

    @model_validator(mode="after")
    def _has_nothing_of_another_kind(self) -> Self:
        unused = {
            "api_key_env": self.is_local or self.is_here,
            **dict.fromkeys(("dtype", "device"), not self.is_local or self.kind == "ema"),
            "template": self.is_student or self.alignment == "bytes",
            "chat_template_kwargs": not self.reads_own_template,
            "top_k": self.kind == "echo" or self.alignment == "bytes",
        }
        fields = type(self).model_fields
        defaults = {name: fields[name].get_default(call_default_factory=True) for name in unused}
        if misplaced := [name for name in unused if unused[name] and getattr(self, name) != defaults[name]]:
            raise ValueError(
                f"teacher {self.name!r} of kind {self.kind!r} with alignment {self.alignment!r} and template "
                f"{self.template!r} has no use for what is set here: leave out {', '.join(misplaced)}"
            )
        return self
