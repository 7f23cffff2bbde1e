"""How often a model is right on questions it was not trained on, sampled as it is trained: at temperature 1."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.science.tasks.rows import Question
from stillhouse.config import OnPolicyConfig, StudentConfig, ToolsConfig
from stillhouse.serving.generator import Generator
from stillhouse.store import digest
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.generations import Generations
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject, Prompt, PromptMetadata


@dataclass(frozen=True, slots=True)
class Exam:
    """Prompts with what is right, always answered with the same seeds."""

    prompts: Sequence[Prompt]
    metadata: Sequence[PromptMetadata]
    max_tokens: int
    max_turns: int = 1
    tools: ToolsConfig = field(default_factory=ToolsConfig)

    @classmethod
    def of(cls, questions: Sequence[Question], max_tokens: int) -> "Exam":
        """Of questions that are answered without tools."""
        return cls([one.prompt for one in questions], [one.metadata for one in questions], max_tokens)

    def identity(self) -> JsonObject:
        """All that the accuracy of a model depends on."""
        questions = [[one.prompt_id, one.expected_answer, one.verifier] for one in self.metadata]
        limits = [self.max_tokens, self.max_turns]
        return {"questions": digest(questions), "limits": limits, "tools": self.tools.model_dump(mode="json")}

    def accuracy(self, student: Student) -> float:
        """The share of right answers."""
        settings = OnPolicyConfig(max_tokens=self.max_tokens, max_turns=self.max_turns, seed=1)
        places = student.causal_lm.config.max_position_embeddings
        sampler = Sampler(student.tokenizer, Toolbox.from_config(self.tools), settings, places)
        metadata = {one.prompt_id: one for one in self.metadata}

        def sample(prompts: Sequence[Prompt]) -> list[SampledTrajectory]:
            return sampler.sample(Generator(student.causal_lm, max_batch=settings.max_concurrent), prompts, 0)

        generations = Generations(
            student, sample, self.prompts, metadata, every_steps=1, work_dir=None, listener=NoListener()
        )
        return generations.measure(0)["generation_accuracy"]

    def accuracy_of(self, folder: Path) -> float:
        """The same of the model in a folder."""
        config = StudentConfig(parameters="full", dtype="float32")
        return self.accuracy(load_student(str(folder), config, torch.device("cpu"), seed=0))
