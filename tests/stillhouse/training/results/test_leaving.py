"""Published students in a process that knows transformers and nothing of this project, by the code of their cards."""

import sys
from pathlib import Path

import pytest
import torch

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.training.model.load import load_student
from stillhouse.training.on_policy.teachers.vocabulary import stop_token_warning
from tests.stillhouse.training.results.students import BASES, check, read_plainly, train_and_publish


@pytest.mark.parametrize("name", ["base", *(pytest.param(name, marks=pytest.mark.slow) for name in ("chat", *BASES))])
def test_a_student_behaves_elsewhere_as_here(name: str, tmp_path: Path) -> None:
    student = train_and_publish(name, tmp_path)
    for folder, seen in read_plainly(sys.executable, student.bases()).items():
        check(folder, seen)
        if name == "base":
            assert len(seen["completion"]) < 60, "it ends its turn"


def test_a_teacher_that_ends_turns_is_warned_of_until_the_student_was_trained_on_such(tmp_path: Path) -> None:
    teacher = load_tokenizer("embedded:teacher")
    student = train_and_publish("base", tmp_path)
    for folder, is_warned in {student.base: True, student.whole: False, student.adapter: False}.items():
        loaded = load_student(str(folder), StudentConfig(lora_rank=4), torch.device("cpu"), seed=0)
        generation = loaded.causal_lm.generation_config
        warning = stop_token_warning(loaded.tokenizer, teacher, generation, None, teacher_name="t")
        assert (warning is not None) is is_warned
        # It still stops at the end of a text, as it does where it is served.
        assert stop_token_ids(loaded.tokenizer, generation) == {0, 2}
