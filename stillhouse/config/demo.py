"""What a flow does that is given nothing: the demo on the embedded models, without a key or a download."""

from typing import Final

from stillhouse.config.data import PromptsConfig
from stillhouse.config.on_policy import OnPolicyConfig
from stillhouse.config.rollouts import RolloutsConfig
from stillhouse.config.root import DistillConfig
from stillhouse.config.run import EvaluationConfig, RuntimeConfig
from stillhouse.config.student import StudentConfig
from stillhouse.config.tools import ToolsConfig
from stillhouse.config.training import SftConfig

DEMO: Final = DistillConfig(
    prompts=PromptsConfig(verifier="numeric"),
    # The embedded teacher was taught to calculate with this tool and cannot answer without it.
    tools=ToolsConfig(builtin=("calculator",)),
    rollouts=RolloutsConfig(max_prompts=400, temperature=1.0, max_tokens=48, max_turns=6),
    student=StudentConfig(parameters="full", dtype="float32", max_length=512),
    sft=SftConfig(
        num_epochs=3,
        batch_size=32,
        microbatch_tokens=2048,
        learning_rate=5e-4,
        schedule="linear",
        checkpoint_every_steps=20,
        log_every_steps=2,
    ),
    on_policy=OnPolicyConfig(
        enabled=True,
        num_steps=100,
        prompts_per_step=64,
        max_tokens=48,
        max_turns=6,
        learning_rate=5e-4,
        schedule="linear",
        checkpoint_every_steps=20,
        log_every_steps=2,
    ),
    evaluation=EvaluationConfig(max_tokens=48, max_turns=6),
    runtime=RuntimeConfig(concurrency=8, num_threads=1),
)
"""As `configs/demo.yaml`."""
