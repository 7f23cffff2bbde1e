import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase as Tokenizer

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import SftConfig, StudentConfig
from stillhouse.dataset.read import original_messages, read_rows
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.training.loop.passes import Passes
from stillhouse.training.model.load import load_student
from stillhouse.training.model.microbatches import num_targets
from stillhouse.training.ranks import Ranks
from stillhouse.training.sft.method import Sft, load_sft
from stillhouse.types import Sample
from tests.stillhouse.training.sections import sft_of

CONFIG = SftConfig(batch_size=4, num_epochs=2)
ALONE = Ranks.single(torch.device("cpu"))


def load(work_dir: Path, folder: Path | None, config: SftConfig = CONFIG, max_length: int = 512) -> Sft:
    tokenizer = load_tokenizer("embedded:student")
    return load_sft(folder, tokenizer, config, max_length, work_dir=work_dir, num_processes=1, ranks=ALONE)


@pytest.fixture
def sft(tmp_path: Path, dataset_folder: Path) -> Sft:
    return load(tmp_path, dataset_folder)


def test_exactly_what_the_assistant_said_is_supervised(tmp_path: Path, dataset_folder: Path, tokenizer: Tokenizer):
    rows = list(read_rows(dataset_folder, "train"))
    sft = load(tmp_path, dataset_folder, SftConfig(batch_size=len(rows), num_epochs=1))
    by_prompt = {sample.prompt_id: sample for sample in sft.batch(0).samples}
    for row in rows:
        sample = by_prompt[row["prompt_id"]]
        spans, span = [], []
        for token, trained in zip([*sample.token_ids, 0], [*sample.loss_mask, False], strict=True):
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
        pairs = zip(sample.token_ids, sample.loss_mask, strict=True)
        unsupervised = tokenizer.decode([token for token, trained in pairs if not trained])
        assert row["messages"][0]["content"] in unsupervised
        assert unsupervised.count("<tool_response>") == sum(message["role"] == "tool" for message in row["messages"])


def test_an_epoch_trains_on_every_row_and_says_how_far_it_is(sft: Sft):
    batches = [sft.batch(step) for step in range(sft.num_steps)]
    rows = Counter(sample.prompt_id for batch in batches for sample in batch.samples)
    assert set(rows.values()) == {2}
    assert batches[0].metrics == {"epoch": pytest.approx(4 / len(rows))}
    assert batches[-1].metrics == {"epoch": 2.0}


def test_only_hard_targets_are_learnt_with_dropout(sft: Sft, tmp_path: Path):
    assert sft.uses_dropout
    soft = Sft(sft.train, (), sft.order, [1] * 1000, sft.config, {}, ScoreLedger(tmp_path, 4))
    assert not soft.uses_dropout


def test_sources_are_mixed_by_weight_with_the_runs_own_dataset(tmp_path: Path, dataset_folder: Path):
    lines = [{"prompt": f"q{number}", "completion": "a", "tag": "other"} for number in range(10)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    num_own = sum(1 for _ in read_rows(dataset_folder, "train"))
    other: dict[str, Any] = {"path": str(tmp_path / "a.jsonl"), "weight": 0.5}
    mixed = load(tmp_path, dataset_folder, sft_of({"batch_size": 1000, "sources": [other]}))
    (samples,) = (mixed.batch(step).samples for step in range(mixed.num_steps))
    assert Counter(sample.tag for sample in samples)["other"] == 3 * 5
    assert len(samples) == 3 * (num_own + 5)
    alone = load(tmp_path, None, sft_of({"dataset_weight": 0.0, "sources": [other], "num_epochs": 2}))
    assert sorted(Counter(sample.prompt_id for sample in alone.batch(0).samples).values()) == [1] * 10


def measured(sft: Sft, tiny_model: str, full_student: StudentConfig) -> tuple[dict[str, float], list[torch.Tensor]]:
    """What a pass says of the validation rows, and the log-probabilities of all tokens at each target by torch."""
    student = load_student(tiny_model, full_student, torch.device("cpu"), seed=0)
    figures = Passes(student, ALONE, CONFIG.trainer).measure(sft.validation, sft)
    with torch.no_grad():
        return figures, [
            student.causal_lm(input_ids=torch.tensor([sample.token_ids])).logits[0].log_softmax(-1)[places(sample) - 1]
            for sample in sft.validation
        ]


def places(sample: Sample) -> torch.Tensor:
    return torch.tensor(sample.loss_mask).nonzero().squeeze(1)


def test_validation_measures_each_target_once(
    sft: Sft, tiny_model: str, full_student: StudentConfig, tokenizer: Tokenizer
):
    assert sft.validation
    figures, logprobs = measured(sft, tiny_model, full_student)
    count = num_targets(sft.validation)
    nll, hits, num_bytes = 0.0, 0, 0
    for sample, logprobs_NV in zip(sft.validation, logprobs, strict=True):
        targets = torch.tensor(sample.token_ids)[places(sample)]
        nll -= logprobs_NV.gather(1, targets[:, None]).sum().item()
        hits += int((logprobs_NV.argmax(1) == targets).sum())
        num_bytes += len(tokenizer.decode(targets, skip_special_tokens=True).encode())
    assert figures["loss"] == pytest.approx(nll / count, rel=1e-5)
    assert figures["nll"] == pytest.approx(nll / count, rel=1e-5)
    assert figures["token_accuracy"] == pytest.approx(hits / count)
    assert figures["bits_per_byte"] == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-5)
