"""Sections of the student and of the two ways to train it."""

from typing import Literal

from pydantic import Field

from stillhouse.config.section import Section


class StudentConfig(Section):
    """The model trained."""

    model: str = "embedded:student"
    """Hugging Face id, a folder, or `embedded:NAME`."""
    parameters: Literal["full", "lora"] = "lora"
    """Train all weights, or a LoRA adapter over frozen ones."""
    lora_rank: int = Field(default=32, ge=1)
    """Rank of the adapter's matrices."""
    lora_alpha: float = Field(default=64.0, gt=0.0)
    """Scale of the adapter: its product is multiplied by alpha / rank."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout before the adapter's first matrix."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the frozen weights and of computation; what is trained is float32."""
    max_length: int = Field(default=4096, ge=2)
    """Longest training row in tokens; longer trajectories are dropped from the dataset, with the reason recorded."""


class TrainerConfig(Section):
    """What the trainer needs, whatever the method: AdamW, its schedule, checkpoints."""

    enabled: bool = True
    """Run this stage."""
    learning_rate: float = Field(default=1e-4, gt=0.0)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warm-up; `linear` and `cosine` end at zero."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimiser steps over which the learning rate rises from zero."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay, on matrices only."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the gradient's running mean."""
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    """Decay of the squared gradient's running mean."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are scaled down to this global norm."""
    microbatch_tokens: int = Field(default=16384, ge=1)
    """Most tokens, padding included, of one forward pass; bounds memory and changes the result by rounding only."""
    checkpoint_every_steps: int = Field(default=100, ge=1)
    """Optimiser steps between checkpoints; a killed run repeats at most so many."""
    log_every_steps: int = Field(default=10, ge=1)
    """Optimiser steps between logged metrics."""
    seed: int = 0
    """Seed of data order, adapter initialisation, dropout and sampling."""


class SftConfig(TrainerConfig):
    """Supervised fine-tuning on the kept trajectories."""

    num_epochs: int = Field(default=3, ge=1)
    """Passes over the training rows."""
    batch_size: int = Field(default=32, ge=1)
    """Samples per optimiser step."""


class OnPolicyConfig(TrainerConfig):
    """On-policy distillation: the student samples, the teacher scores each sampled token."""

    enabled: bool = False
    """Run this stage, after SFT if that runs too."""
    teacher: str | None = None
    """Local model that scores; None takes the teacher's own model, which must then be a local one."""
    num_steps: int = Field(default=100, ge=1)
    """Optimiser steps."""
    prompts_per_step: int = Field(default=32, ge=1)
    """Distinct prompts sampled from for one step."""
    group_size: int = Field(default=1, ge=1)
    """Trajectories per prompt."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens of one completion."""
    max_turns: int = Field(default=10, ge=1)
    """Most completions of one trajectory."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature; log-probabilities of student and teacher are taken at the same temperature."""
    kl_coef: float = Field(default=1.0, gt=0.0)
    """Factor of the reverse KL in the advantage."""
    adv_clip: float | None = Field(default=None, gt=0.0)
    """Advantages are clipped to this absolute value; None clips nothing."""
