"""The section of the student: the model, which of its parameters are trained, and in which types."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.section import Section


class StudentConfig(Section):
    """The model trained."""

    model: str = "embedded:student"
    """Hugging Face id, a folder, or `embedded:NAME`."""
    parameters: Literal["full", "lora", "qlora"] = "lora"
    """Train all weights, an adapter over frozen ones, or an adapter over weights frozen in 4 bits (CUDA only)."""
    lora_variant: Literal["lora", "rslora", "dora"] = "lora"
    """How the adapter is scaled: by alpha / rank, by alpha / sqrt(rank), or with trained magnitudes of its own."""
    lora_rank: int = Field(default=32, ge=1)
    """Rank of the adapter's matrices."""
    lora_alpha: float = Field(default=64.0, gt=0.0)
    """Numerator of the adapter's scale."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout before the adapter's first matrix."""
    lora_targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("all-linear",)
    """Ends of the names of the layers that get an adapter, such as `q_proj`; `all-linear` takes every linear layer but
    the output layer."""
    neftune_alpha: float | None = Field(default=None, gt=0.0)
    """Size of the uniform noise added to the embeddings of SFT (NEFTune); None adds none."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the frozen weights and of computation; what is trained is float32."""
    max_length: int = Field(default=4096, ge=2)
    """Longest training row in tokens; longer trajectories are dropped from the dataset, with the reason recorded."""
    merge: bool = False
    """Write the weights with the adapter merged into them too, checked against the adapter. For a student that is
    already at hand, `stillhouse publish --merge` does it without training again."""

    @model_validator(mode="after")
    def _an_adapter_to_merge(self) -> Self:
        if self.merge and self.parameters == "full":
            raise ValueError("student.merge is set, but student.parameters is `full`: there is no adapter to merge")
        return self
