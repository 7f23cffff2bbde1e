"""Sections of the student and of the trainings it goes through."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from stillhouse.config.on_policy_teacher import OnPolicyTeacher
from stillhouse.config.section import ChatTemplateKwargs, Section, later_field


class StudentConfig(Section):
    """The model trained."""

    form_first = ("model", "parameters", "max_length")

    model: str = "embedded:student"
    """Hugging Face id, a folder, or `embedded:NAME`. Begin with the smallest of the teacher's family, such as
    Qwen3-0.6B for Qwen3-8B: an on-policy teacher that scores by token id needs the same vocabulary."""
    parameters: Literal["full", "lora", "qlora"] = "lora"
    """Train all weights, an adapter over frozen ones, or an adapter over weights frozen in 4 bits (CUDA only). Try
    `lora` first: at rank 32 it came within 6 % of full training after on-policy distillation and 13 % after SFT
    (Thinking Machines, 2025), at a fraction of the memory."""
    lora_variant: Literal["lora", "rslora"] = "lora"
    """How the adapter is scaled: by alpha / rank or by alpha / sqrt(rank). `rslora` for ranks of 64 and more."""
    lora_rank: int = Field(default=32, ge=1)
    """Rank of the adapter's matrices. 32 suits most runs; 8 to 16 for a few hundred rows, 128 for SFT on hundreds of
    thousands (tinker-cookbook's recipes), at four times the trained weights."""
    lora_alpha: float = Field(default=64.0, gt=0.0)
    """Numerator of the adapter's scale. Twice the rank is usual; raising it acts like a higher learning rate."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout before the adapter's first matrix, in SFT with the loss `nll` alone. 0 first; 0.05 to 0.1 where
    validation loss rises on few rows (QLoRA's values)."""
    lora_targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("all-linear",)
    """Suffixes of the names of adapted layers, such as `q_proj`; `all-linear` takes all of the text model but routers
    and the output layer, `experts` those that are one tensor."""
    chat_template_kwargs: ChatTemplateKwargs = later_field({})
    """Values for variables of the student's chat template, such as `enable_thinking: false`: wherever it is rendered in
    the run, and as defaults in the template that the student is saved with."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the frozen weights and of computation; what is trained is float32. `bfloat16` on GPUs; `float32` for
    exact comparisons, and on CPUs without bfloat16 units."""
    max_length: int = Field(default=4096, ge=2)
    """Longest training row in tokens; longer trajectories are dropped from the dataset, with the reason recorded. The
    dataset's report shows their lengths: set it to hold nearly all, since memory grows with it."""
    merge: bool = False
    """Also write weights with the adapter merged in, checked against it. `stillhouse publish --merge` does so later."""

    @model_validator(mode="after")
    def _an_adapter_to_merge(self) -> Self:
        if self.merge and self.parameters == "full":
            raise ValueError("student.merge is set, but student.parameters is `full`: there is no adapter to merge")
        return self


def written_in_yaml(value: object) -> object:
    """Return `on` and `off` for the true and false that YAML reads them as."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(written_in_yaml)]
_Part = Literal["text", "reasoning", "tool_calls"]
_Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class TrainerConfig(Section):
    """Settings of training by any method: optimiser, schedule, memory, checkpoints, measurements."""

    optimizer: Literal["adamw", "adamw_8bit", "muon"] = "adamw"
    """AdamW, AdamW with 8-bit states (CUDA only), or Muon for the hidden matrices of full fine-tuning. `adamw` first;
    `adamw_8bit` takes 2 bytes a trained weight for its states instead of 8."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Schedule of the learning rate after warm-up; `wsd` stays at the peak and falls linearly over the last fifth.
    `constant` first for on-policy training, `linear` or `cosine` for SFT, `wsd` where num_steps may grow later."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps over which the learning rate rises from zero. 0 to 10 for adapters; 3 to 10 % of the steps for
    all weights, or if the loss jumps at the start."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay, on matrices only. 0 for adapters and short trainings; 0.01 to 0.1 for all weights over
    several epochs."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.95)
    """Decays of the running means of the gradient and of its square. A second one of 0.95 follows a changing gradient
    within 20 steps; 0.99 to 0.999 is steadier for small batches and long trainings."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are scaled down to this global norm. 1 is usual; where `grad_norm` is above it at every step, lower the
    learning rate first."""
    ema_decay: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Decay of a running mean of the weights, which is then what is validated and written; None keeps none. 0.99
    averages about 100 steps; 0.95 to 0.99 for a teacher of kind `ema`."""
    microbatch_tokens: int = Field(default=16384, ge=1)
    """Most tokens, padding included, of one forward pass; bounds memory and changes the result by rounding only. Halve
    it when memory runs out, double it while a GPU is not busy."""
    packing: bool = True
    """Concatenate the rows of a microbatch, each attending only to itself; off, or if a model mixes them, pad them. Off
    only to look for a fault: short rows then train several times slower."""
    gradient_checkpointing: Switch = "auto"
    """Recompute activations in the backward pass, which takes a third more time; `auto` does if an estimate says that
    they would not fit. `on` if memory runs out all the same."""
    compile: Switch = "auto"
    """Compile the model's blocks and the loss; `auto` does on CUDA for trainings long enough to pay for it."""
    checkpoint_every_steps: int = Field(default=100, ge=1)
    """Optimiser steps between checkpoints, of which the newest two are kept; a killed run repeats at most this many.
    Choose what you can afford to lose: about ten minutes of steps."""
    validate_every_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps between validations; None validates with each checkpoint. Ten to twenty validations a training
    show the curve."""
    keep: Literal["last", "best"] = "last"
    """Weights of the student: after the last step, or at the lowest validation loss (negative log-likelihood). `best`
    where that loss rises again before the end."""
    early_stopping_patience: int | None = Field(default=None, ge=1)
    """Training ends after this many validations in a row without a lower loss; None never ends it early. 2 or 3, with
    `keep: best`."""
    generate_every_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps between measurements of accuracy on what the student answers to prompts that are not trained on:
    SFT's validation rows, or the held-out prompts; None measures none. A tenth of all steps shows the curve."""
    num_generations: int = Field(default=32, ge=1)
    """Prompts answered in one such measurement. 32 show a trend (95 % interval of 17 points either way), 200 a
    result."""
    log_every_steps: int = Field(default=10, ge=1)
    """Optimiser steps between logged metrics; 1 for trainings of less than 100 steps."""
    seed: int = 0
    """Seed of data order, adapter initialisation, dropout and sampling. Three seeds show how much of a difference is
    chance."""


class SftSource(Section):
    """Conversations to train on that do not come from this run's rollouts."""

    path: str
    """A Parquet, json, jsonl, csv or tsv file of conversations (`messages` and `tools`, ShareGPT's, prompt and
    completion, Alpaca's), a dataset folder, or `hf:NAME[:CONFIG]`."""
    split: str = "train"
    """Split of a Hugging Face dataset; mostly `train`."""
    weight: float = Field(default=1.0, gt=0.0)
    """Passes over the rows of this source in one epoch; 0.5 trains on a different half of them in each."""
    validation_share: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the rows, by prompt, that is used for validation and not trained on."""


class SftConfig(Section):
    """Supervised fine-tuning on the kept trajectories, on other conversations, or on a mixture."""

    form_first = ("enabled", "num_epochs", "batch_size", "learning_rate")

    enabled: bool = True
    """Run this stage."""
    num_epochs: int = Field(default=3, ge=1)
    """Passes over the training rows. 2 to 4 for some thousand rows, 1 for 50,000 and more; a validation loss that rises
    again says too many."""
    batch_size: int = Field(default=32, ge=1)
    """Samples per optimiser step. 16 to 64 for some thousand rows, 128 and more for hundreds of thousands; a larger one
    bears a higher learning rate."""
    learning_rate: float = Field(default=1e-4, gt=0.0)
    """Peak learning rate. Try 1e-4 to 1e-3 for adapters, and 1e-5 to 5e-5 for all weights. Halve it if the loss jumps,
    double it if the loss hardly falls."""
    trainer: TrainerConfig = TrainerConfig()
    """Optimiser, schedule, memory, checkpoints and measurements."""
    dataset_weight: float = Field(default=1.0, ge=0.0)
    """Passes over the run's own dataset in one epoch; 0 trains on `sources` alone and needs no teacher."""
    sources: tuple[SftSource, ...] = ()
    """Conversations mixed in."""
    too_long: Literal["truncate", "drop"] = "truncate"
    """Treatment of rows longer than student.max_length; both are counted. `truncate` learns their beginnings, `drop`
    no answer without its end."""
    train_on: tuple[_Part, ...] = Field(default=("text", "reasoning", "tool_calls"), min_length=1)
    """Parts of the assistant's messages to learn: text outside reasoning and tool calls, reasoning, tool calls, the end
    of a turn going with its calls or else its text. No `reasoning` for a student that is to answer at once."""
    loss: Literal["nll", "kl"] = "nll"
    """Cross-entropy, or the KL from a teacher that scores the rows once. `nll` first; `kl` learns from each token what
    else could stand there."""
    teacher: str | None = later_field(None)
    """Local model that scores the rows for `kl`, of the student's vocabulary; None takes the teacher's own model where
    that is a local one. Rows of rollouts with `record_top_k` bring their own teacher's scores, and need none."""
    teachers: tuple[OnPolicyTeacher, ...] = later_field((), max_length=1)
    """In place of `teacher`, one with settings of its own: a local model, or one behind vLLM or SGLang."""
    top_k: int = later_field(20, ge=1)
    """Most probable tokens of the teacher that `kl` compares at each token, all others being one more. 20 leaves little
    of a sharp teacher to the others (`soft_targets_tail`); 100 takes five times the space (some 440 bytes a token)."""
    hard_weight: float = later_field(0.0, ge=0.0)
    """Factor of the cross-entropy beside the KL. 0 where the teacher wrote the rows itself; up to 1 for rows that are
    better than the teacher."""
    soft_temperature: float = later_field(1.0, gt=0.0)
    """Divides the logits of teacher and student in the KL, which is multiplied by its square (Hinton et al., 2015,
    section 2). 1 for rows of the teacher; 2 shows more of what it finds improbable, from a local teacher alone."""

    def key_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields.pop("trainer"), **fields}

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if self.dataset_weight == 0.0 and not self.sources:
            raise ValueError("sft.dataset_weight is 0 and sft.sources is empty: nothing is left to train on")
        return self

    @model_validator(mode="after")
    def _a_teacher_of_soft_targets(self) -> Self:
        if self.loss != "kl":
            names = ("teacher", "teachers", "top_k", "hard_weight", "soft_temperature")
            fields = type(self).model_fields
            if unused := [f"sft.{name}" for name in names if getattr(self, name) != fields[name].default]:
                raise ValueError(f"sft.loss `{self.loss}` has no use for {', '.join(unused)}; expected loss `kl`")
            return self
        if self.teacher is not None and self.teachers:
            raise ValueError("sft.teacher and sft.teachers are both set; put the model of `teacher` into `teachers`")
        for teacher in self.teachers:
            if teacher.kind not in ("local", "vllm", "sglang") or teacher.alignment != "ids":
                raise ValueError(
                    f"teacher {teacher.name!r} of sft.teachers is of kind {teacher.kind!r} with alignment "
                    f"{teacher.alignment!r}, which gives no distribution over the student's vocabulary; expected "
                    "`local`, `vllm` or `sglang` with `ids`"
                )
            if teacher.hint or teacher.routes or teacher.kl_coef or teacher.top_k or teacher.reads_own_template:
                raise ValueError(
                    f"teacher {teacher.name!r} of sft.teachers scores the rows as they are: leave out its hint, "
                    "template, routes, kl_coef and top_k (sft.top_k is for all rows)"
                )
        return self

    def scoring_teacher(self, default_ref: str | None) -> OnPolicyTeacher | None:
        """Return the teacher of the loss `kl`, by default the local model `default_ref`; None without any."""
        if self.teachers:
            return self.teachers[0]
        ref = self.teacher or default_ref
        return None if ref is None else OnPolicyTeacher(name="teacher", model=ref)
