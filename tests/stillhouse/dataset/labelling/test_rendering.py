from collections.abc import Callable

import pytest

from stillhouse.chat.samples import render_samples
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.rendering import RenderLabels
from stillhouse.errors import ConfigError
from stillhouse.types import Trajectory

Make = Callable[..., Trajectory]


@pytest.fixture(scope="module")
def render_labels() -> RenderLabels:
    return RenderLabels("embedded:student", {})


def test_lengths_are_those_of_the_sample_that_is_trained_on(render_labels: RenderLabels, make_trajectory: Make) -> None:
    tokenizer = load_tokenizer("embedded:student")
    trajectories = [make_trajectory(number, answer="yes " * number) for number in range(5)]
    labels = render_labels([LabelInput.of(trajectory, None) for trajectory in trajectories])
    samples = [render_samples(tokenizer, row.messages, row.tools)[0] for row in trajectories]
    assert labels["num_tokens"] == [len(sample.token_ids) for sample in samples]
    assert labels["num_supervised_tokens"] == [sum(sample.loss_mask) for sample in samples]
    assert labels["template_problem"] == [None] * 5


def test_a_row_that_cannot_be_rendered_leaves_others_alone(render_labels: RenderLabels, make_trajectory: Make) -> None:
    sound = make_trajectory()
    bad = make_trajectory(messages=sound.messages[1:])
    labels = render_labels([LabelInput.of(trajectory, None) for trajectory in (sound, bad, sound)])
    assert labels["num_tokens"][1] is None
    assert labels["num_supervised_tokens"][1] is None
    assert "refuses a conversation" in labels["template_problem"][1]
    assert labels["num_tokens"][0] == labels["num_tokens"][2] > 0
    assert labels["template_problem"][::2] == [None, None]


def test_a_call_rendered_as_another_is_a_problem_of_a_row(render_labels: RenderLabels, make_trajectory: Make) -> None:
    trajectory = make_trajectory()
    trajectory.messages[1]["tool_calls"][0]["function"]["arguments"] = "2 + 3"
    labels = render_labels([LabelInput.of(trajectory, None)])
    assert labels["num_tokens"][0] > 0
    assert "message 1 is rendered as something else: the call calculator" in labels["template_problem"][0]


def test_a_student_without_a_tokenizer_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="/no/such/student"):
        RenderLabels("/no/such/student", {})
