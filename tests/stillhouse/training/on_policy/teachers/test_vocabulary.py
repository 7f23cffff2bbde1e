import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import GenerationConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from stillhouse.chat.next_turn import TurnEnds
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.errors import TrainingError
from stillhouse.training.on_policy.teachers.shared_ids import EndExchange
from stillhouse.training.on_policy.teachers.vocabulary import (
    check_spellings,
    num_shared_ids,
    spelling_sample,
    stop_token_warning,
)


@pytest.mark.parametrize("with_more", ["nobody", "student", "teacher", "both"])
def test_all_tokens_are_shared_unless_one_has_a_special_token_more(with_more: str) -> None:
    student, teacher = load_tokenizer("embedded:student"), load_tokenizer("embedded:teacher")
    count = len(teacher)
    for name, tokenizer in (("student", student), ("teacher", teacher)):
        if with_more in (name, "both"):
            tokenizer.add_special_tokens({"additional_special_tokens": [f"<of the {name}>"]})
    assert num_shared_ids("embedded:teacher", teacher, student) == (None if with_more == "nobody" else count)


def test_a_teacher_of_another_vocabulary_is_refused_with_the_tokens_that_differ(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    words = {**tokenizer.get_vocab()}
    first, second = (word for word, token in words.items() if token in (300, 301))
    words[first], words[second] = words[second], words[first]
    teacher = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(words, [])))
    with pytest.raises(TrainingError, match=r"2 tokens differ .* 30[01] .*alignment.*bytes"):
        num_shared_ids("far", teacher, tokenizer)


def test_a_teacher_without_the_students_end_of_turn_is_refused() -> None:
    student, teacher = load_tokenizer("embedded:student"), load_tokenizer("embedded:teacher")
    student.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    student.chat_template = student.chat_template.replace("<|im_end|>", "<|end|>")
    with pytest.raises(TrainingError, match=r"'<\|end\|>' is \d+ .* None"):
        num_shared_ids("embedded:teacher", teacher, student)


def test_spellings_are_tried_all_over_the_vocabulary(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = spelling_sample(tokenizer, 64)
    assert len(ids) == 64
    assert max(ids) > 0.9 * len(tokenizer)
    spellings: list[str | None] = [tokenizer.decode([token]) for token in ids]
    check_spellings("far", ids, spellings, tokenizer)
    # Not all servers write the space before a word, or know how to write a piece of a character.
    check_spellings("far", ids, [text.strip() if text else None for text in spellings], tokenizer)
    check_spellings("far", ids, [None] * 64, tokenizer)
    with pytest.raises(TrainingError, match=r"'far' .*vocabulary: of 64 tokens"):
        check_spellings("far", ids, spellings[1:] + spellings[:1], tokenizer)


END_OF_TEXT, END_OF_TURN = 0, 2
Model = tuple[PreTrainedTokenizerBase, GenerationConfig | None]


def ending_with(eos: int) -> PreTrainedTokenizerBase:
    """Both have the template that closes turns with the end of a turn, as base models often do."""
    tokenizer = load_tokenizer("embedded:student")
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos)
    return tokenizer


BASE = (ending_with(END_OF_TEXT), GenerationConfig(eos_token_id=END_OF_TEXT))
INSTRUCTED = (ending_with(END_OF_TURN), GenerationConfig(eos_token_id=[END_OF_TURN, END_OF_TEXT]))
INSTRUCTED_BY_TOKENIZER = (ending_with(END_OF_TURN), None)


@pytest.mark.parametrize(
    ("student", "teacher", "is_warned"),
    [
        pytest.param(BASE, INSTRUCTED, True, id="base student"),
        pytest.param(BASE, INSTRUCTED_BY_TOKENIZER, True, id="base student, no generation config"),
        pytest.param(INSTRUCTED_BY_TOKENIZER, BASE, True, id="base teacher"),
        pytest.param(INSTRUCTED, INSTRUCTED, False, id="both instructed"),
        pytest.param(INSTRUCTED_BY_TOKENIZER, INSTRUCTED, False, id="one without config"),
        pytest.param(BASE, BASE, False, id="both base"),
    ],
)
def test_only_a_base_model_with_an_instructed_one_is_warned_of(student: Model, teacher: Model, is_warned: bool) -> None:
    warning = stop_token_warning(student[0], teacher[0], student[1], teacher[1], teacher_name="maths")
    assert (warning is not None) is is_warned


def test_a_stop_token_that_is_exchanged_for_the_teachers_is_no_reason_to_warn() -> None:
    ends = [(TurnEnds(END_OF_TEXT, END_OF_TEXT), False), (TurnEnds(END_OF_TURN, END_OF_TURN), True)]
    for ours, is_warned in ends:
        exchange = EndExchange(ours, TurnEnds(END_OF_TURN, END_OF_TURN))
        warning = stop_token_warning(
            BASE[0], INSTRUCTED[0], BASE[1], INSTRUCTED[1], teacher_name="maths", exchange=exchange
        )
        assert (warning is not None) is is_warned


def test_the_warning_names_the_tokens_and_the_way_out() -> None:
    warning = stop_token_warning(BASE[0], INSTRUCTED[0], BASE[1], INSTRUCTED[1], teacher_name="maths") or ""
    different = "teacher 'maths' have different stop tokens: the student stops at <|endoftext|> (0), the teacher at"
    assert all(part in warning for part in (different, "<|im_end|> (2)", "SFT"))
