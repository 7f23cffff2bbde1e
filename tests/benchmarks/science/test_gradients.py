from pathlib import Path

from benchmarks.science.gradients import gradient_noise, kept_gradient_noise
from benchmarks.science.lab import Lab
from benchmarks.science.methods import EXACT, on_policy
from benchmarks.science.models import write_new_model
from benchmarks.science.tasks.rows import write_questions
from benchmarks.science.training import Training


def test_the_exact_divergence_is_less_noisy_than_the_sampled_one(lab: Lab, new_model: Path, tmp_path: Path) -> None:
    prompts = write_questions(tmp_path, [chain.question() for chain in lab.prompt_chains[:4]])
    teacher = write_new_model(lab.folder / "models" / "random-1", seed=1)
    noise = {}
    for name, settings in (("sampled", {}), ("exact", EXACT)):
        config = on_policy(lab, 0, **settings).model_copy(update={"num_steps": 4})
        noise[name] = gradient_noise(
            Training(start=new_model, config=config, measure_every=1, prompts=prompts, teacher=teacher), 4
        )
    assert 0.0 < noise["exact"] < noise["sampled"]


def test_a_noise_that_was_measured_is_kept(lab: Lab, new_model: Path, tmp_path: Path) -> None:
    training = Training(
        start=new_model, config=on_policy(lab, 0), measure_every=1, prompts=lab.prompts, teacher=new_model
    )
    (tmp_path / f"{training.digest({})}-2.json").write_text("0.25")
    assert kept_gradient_noise(training, 2, tmp_path) == 0.25
