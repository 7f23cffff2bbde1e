"""A loss of the user's own: the page that shows one, what is refused, and a training with it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from stillhouse.config import OnPolicyConfig
from stillhouse.errors import ConfigError, StillhouseError
from stillhouse.training.job import TrainJob
from stillhouse.training.on_policy.algorithms.algorithm import LossInputs
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.training.on_policy.user_loss import UserLoss
from tests.stillhouse.training.trainings import final_of

PAGE = Path(__file__).parents[4] / "docs/recipes/new_algorithm.md"
BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
INPUTS = LossInputs(
    torch.tensor([-1.0, -2.0, -0.5], requires_grad=True), *(torch.zeros(3), None, *[torch.zeros(3)] * 3, None)
)


@pytest.fixture
def of_the_page(tmp_path: Path) -> Path:
    """The folder with the files of the page."""
    for name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_test_of_the_page_passes(of_the_page: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_cispo.py"],
        cwd=of_the_page,
        env=os.environ | {"PYTHONPATH": str(of_the_page)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_training_minimises_the_loss_of_the_page(of_the_page: Path, new_method: Callable[..., OnPolicy]) -> None:
    """On samples of the weights being trained no ratio is clipped: its step is that of the built-in loss."""
    finals = []
    for settings in ({"loss": f"{of_the_page}/cispo.py:cispo"}, {}):
        finals.append(final_of(new_method(num_steps=1, **settings)))
    assert finals[0]["on_policy/grad_norm"] == pytest.approx(finals[1]["on_policy/grad_norm"], rel=1e-4)
    assert finals[0]["on_policy/advantage"] == pytest.approx(finals[1]["on_policy/advantage"], rel=1e-6)
    assert finals[0]["on_policy/ratio_clipped_share"] == 0.0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('no beta')", "ValueError: no beta"),
        ("return inputs.student_logprobs_N", "Tensor;.*TokenLosses"),
        ("return TokenLosses(inputs.student_logprobs_N.mean())", r"losses_N.*\[\].*\[3\]"),
        ("return TokenLosses(inputs.student_logprobs_N / 0.0)", "losses_N.*finite"),
        ("return TokenLosses(inputs.student_logprobs_N, {'share': inputs.kl_coef_N[:2]})", r"share.*\[2\].*\[3\]"),
        ("return TokenLosses(inputs.sampling_logprobs_N)", "losses_N.*gradient"),
    ],
)
def test_a_loss_that_fails_or_returns_something_else_is_named_with_its_file(
    tmp_path: Path, body: str, message: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"from stillhouse.training.head.scores import TokenLosses\ndef tapered(inputs):\n    {body}\n", encoding="utf-8"
    )
    with pytest.raises(StillhouseError, match=f"mine.py: tapered, .*{message}"):
        UserLoss(f"{file}:tapered")(INPUTS)
    with pytest.raises(ConfigError, match=r"mine\.py.* other, .*on_policy\.loss"):
        UserLoss(f"{file}:other")


def test_settings_of_the_loss_that_it_replaces_are_refused_beside_it() -> None:
    with pytest.raises(ValidationError, match=r"loss = a.py:f.* loss_fn, adv_clip"):
        OnPolicyConfig(loss="a.py:f", loss_fn="ppo", adv_clip=5.0)
    with pytest.raises(ValidationError, match="loss"):
        OnPolicyConfig(loss="a.py")


def test_the_content_of_the_file_is_part_of_the_identity(
    of_the_page: Path, new_on_policy_job: Callable[..., TrainJob], tmp_path: Path
) -> None:
    file = of_the_page / "cispo.py"
    job = new_on_policy_job(tmp_path, {"loss": f"{file}:cispo"})
    before = job.digest()
    assert "loss_file" not in new_on_policy_job(tmp_path, {}).identity()
    file.write_text(file.read_text(encoding="utf-8").replace("4.0", "5.0"), encoding="utf-8")
    assert job.digest() != before
    file.unlink()
    with pytest.raises(ConfigError, match=r"cispo\.py.*on_policy\.loss"):
        job.digest()
