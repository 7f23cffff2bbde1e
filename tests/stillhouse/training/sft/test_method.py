from collections import Counter
from pathlib import Path

import pytest
import torch

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import SftConfig, StudentConfig
from stillhouse.dataset.read import original_messages, read_rows
from stillhouse.errors import InputError
from stillhouse.training.batching.microbatches import num_targets
from stillhouse.training.parallel.ranks import Ranks
from stillhouse.training.passes import Passes
from stillhouse.training.sft.method import Sft, load_sft, samples_from_rows
from stillhouse.training.student.load import load_student

CONFIG = SftConfig(batch_size=4, num_epochs=2)


@pytest.fixture
def sft(dataset_folder: Path) -> Sft:
    return load_sft(dataset_folder, load_tokenizer("embedded:student"), CONFIG, max_length=512)


def test_exactly_what_the_assistant_said_is_supervised(dataset_folder: Path):
    tokenizer = load_tokenizer("embedded:student")
    rows = list(read_rows(dataset_folder, "train"))
    for row, sample in zip(rows, samples_from_rows(rows, tokenizer, 512, "train"), strict=True):
        spans, span = [], []
        for token, trained in zip(sample.token_ids, sample.loss_mask, strict=True):
            if trained:
                span.append(token)
            elif span:
                spans.append(tokenizer.decode(span))
                span = []
        assistant = [message for message in original_messages(row) if message["role"] == "assistant"]
        assert len(spans) == len(assistant)
        for text, message in zip(spans, assistant, strict=True):
            assert text.endswith("<|im_end|>")
            if message.get("tool_calls"):
                assert message["tool_calls"][0]["function"]["arguments"] in text
            else:
                assert text == message["content"] + "<|im_end|>"


def test_tool_output_and_prompt_are_never_supervised(dataset_folder: Path):
    tokenizer = load_tokenizer("embedded:student")
    rows = list(read_rows(dataset_folder, "train"))
    for row, sample in zip(rows, samples_from_rows(rows, tokenizer, 512, "train"), strict=True):
        pairs = zip(sample.token_ids, sample.loss_mask, strict=True)
        unsupervised = tokenizer.decode([token for token, trained in pairs if not trained])
        assert row["messages"][0]["content"] in unsupervised
        num_results = sum(message["role"] == "tool" for message in row["messages"])
        assert unsupervised.count("<tool_response>") == num_results


def test_an_epoch_trains_on_every_row(sft: Sft):
    rows = Counter(sample.prompt_id for step in range(sft.num_steps) for sample in sft.batch(step).samples)
    assert set(rows.values()) == {2}


def test_a_batch_is_the_same_whenever_it_is_asked_for(sft: Sft):
    last = sft.batch(2)
    sft.batch(0)
    assert [sample.prompt_id for sample in sft.batch(2).samples] == [sample.prompt_id for sample in last.samples]


def test_validation_loss_is_the_mean_over_the_tokens_of_the_validation_rows(
    sft: Sft, tiny_model: str, full_student: StudentConfig
):
    student = load_student(tiny_model, full_student, torch.device("cpu"), seed=0)
    assert sft.validation
    total = 0.0
    for sample in sft.validation:
        with torch.no_grad():
            logprobs = student.causal_lm(input_ids=torch.tensor([sample.token_ids])).logits[0].log_softmax(-1)
        total -= sum(
            logprobs[index - 1, token].item()
            for index, (token, trained) in enumerate(zip(sample.token_ids, sample.loss_mask, strict=True))
            if trained
        )
    measured = Passes(student, Ranks.single(student.device), CONFIG).measure(sft.validation, sft)
    assert measured.loss == pytest.approx(total / num_targets(sft.validation), rel=1e-5)


def test_row_without_supervised_token_names_file_and_prompt():
    rows = [{"prompt_id": "abc", "messages": [{"role": "user", "content": "hi"}], "tools": []}]
    with pytest.raises(InputError, match=r"d/train\.parquet, row 0 \(prompt abc\): no supervised token"):
        samples_from_rows(rows, load_tokenizer("embedded:student"), 512, "d/train.parquet")


def test_row_longer_than_max_length_names_both_lengths(dataset_folder: Path):
    with pytest.raises(InputError, match=r"tokens, at most student\.max_length = 20 expected"):
        samples_from_rows(read_rows(dataset_folder, "train"), load_tokenizer("embedded:student"), 20, "train")
