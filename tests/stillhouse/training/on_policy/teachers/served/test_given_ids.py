"""A vLLM teacher that scores the tokens which the student finds most probable, too, against the model itself."""

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from stillhouse.chat.next_turn import TurnEnds
from stillhouse.chat.refs import resolve_model
from stillhouse.config import Divergence, OnPolicyTeacher, RuntimeConfig
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.training.on_policy.teachers.shared_ids import NO_ID, EndExchange, SharedIds
from stillhouse.types import Sample

Connect = Callable[..., ServedTeacher]

TOKENS = [1, 9, 40, 7, 12, 9, 2, 33]
SAMPLED = [False, False, True, True, False, False, True, True]
# The sampled tokens are 40, 7, 2 and 33.
IDS = np.array([[40, 8, 3], [5, 6, 8], [1, 4, 2], [90, 91, 33]], np.int32)
ASKED = [[40, 8, 3], [5, 6, 7], [1, 4, 2], [90, 91, 33]]
REVERSE = (Divergence(kind="reverse_kl"),)


@pytest.fixture(scope="module")
def teacher_url(serve: Callable[..., str]) -> str:
    return serve("embedded:teacher", "big", scales_out=True)


@pytest.fixture
def connected(teacher_url: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Connect:
    def make(
        url: str = teacher_url,
        alignment: SharedIds | None = None,
        divergence: tuple[Divergence, ...] = REVERSE,
        top_k: int = 3,
    ) -> ServedTeacher:
        teacher = OnPolicyTeacher(name="far", kind="vllm", model="big", base_url=url, top_k=top_k)
        runtime = RuntimeConfig(store=str(tmp_path))
        return connect(teacher, 1.0, 1.0, tokenizer, alignment, runtime, divergence=divergence, max_outage_s=0.0)

    return make


def truth(tokens: list[int]) -> torch.Tensor:
    """Log-probabilities in float64 of all tokens at the sampled ones."""
    model = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:teacher"), dtype=torch.float64).eval()
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)[torch.tensor(SAMPLED[1:])]


def scored(teacher: ServedTeacher, sample: Sample) -> SequenceScores:
    with closing(teacher):
        [scores] = teacher.start([sample]).result(120)
    return scores


def test_the_students_tokens_are_scored_as_the_model_finds_them_with_the_mass_of_all_others(connected: Connect):
    teacher = connected()
    assert teacher.given is not None
    logprobs, top = scored(teacher, Sample(TOKENS, SAMPLED, "p", best_ids_NK=IDS))
    assert top is not None
    assert top.ids_NK[:, :3].tolist() == ASKED, "the sampled token is among them, in place of the last"
    known = truth(TOKENS).gather(1, torch.tensor(ASKED)).numpy()
    assert top.logprobs_NK[:, :3] == pytest.approx(known, abs=1e-5)
    assert logprobs == pytest.approx(known[range(4), [0, 2, 2, 2]], abs=1e-5)
    best = truth(TOKENS).topk(3).indices.tolist()
    others = [[NO_ID if token in row else token for token in own] for row, own in zip(ASKED, best, strict=True)]
    assert top.ids_NK[:, 3:].tolist() == others, "the teacher's own, each token once"
    mass = np.exp(top.logprobs_NK).sum(axis=1) + np.exp(top.log_tail_N)
    assert mass == pytest.approx(np.ones(4), abs=1e-5)


def test_answers_are_kept_by_the_tokens_that_were_given(connected: Connect):
    first, same, others = Sample(TOKENS, SAMPLED, "p", best_ids_NK=IDS), IDS.copy(), IDS + 100
    with closing(connected()) as teacher:
        for ids, num_replayed in ((first.best_ids_NK, 0), (same, 1), (others, 1)):
            teacher.start([Sample(TOKENS, SAMPLED, "p", best_ids_NK=ids)]).result(120)
            assert teacher.scorer.stats.num_replayed_completions == num_replayed


def test_exchanged_ends_are_given_as_the_teachers_and_come_back_as_the_students(
    connected: Connect, tokenizer: PreTrainedTokenizerBase
):
    exchange = EndExchange(TurnEnds(0, 0), TurnEnds(2, 2))
    shared = SharedIds("far", 90, tokenizer, exchange)
    # The student sampled 0, which the teacher reads as 2, and has two tokens from 90 on that the teacher lacks.
    student = [0 if token == 2 else token for token in TOKENS]
    sample = Sample(student, SAMPLED, "p", teacher_view=Sample(TOKENS, SAMPLED, "p"), best_ids_NK=IDS)
    _, top = scored(connected(alignment=shared), sample)
    assert top is not None
    assert top.ids_NK[:, :3].tolist() == [*ASKED[:2], [1, 4, 0], [NO_ID, NO_ID, 33]]
    known = truth(TOKENS)
    assert top.logprobs_NK[2, 2] == pytest.approx(known[2, 2].item(), abs=1e-5), "of the teacher's end, which it read"


def test_a_server_without_scale_out_gives_its_own_tokens_and_one_line_names_the_flag(
    connected: Connect, serve: Callable[..., str], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    teacher = connected(url=serve("embedded:teacher", "big"))
    assert teacher.given is None
    _, top = scored(teacher, Sample(TOKENS, SAMPLED, "p", best_ids_NK=IDS))
    assert top is not None
    assert top.ids_NK.tolist() == truth(TOKENS).topk(3).indices.tolist()
    [line] = [record.getMessage() for record in caplog.records if "reverse KL" in record.getMessage()]
    assert "--enable-scale-out" in line
    assert "disabled" in line, "what the server says"


def test_a_server_that_takes_fewer_ids_than_top_k_gives_its_own(connected: Connect, teacher_url: str):
    with closing(connected(top_k=20)) as teacher:
        assert teacher.given is not None
        # One that scores given ids otherwise than tokens is no better than one that does not score them.
        view = Sample(TOKENS, SAMPLED, "p")
        refusal = teacher.given.refusal(teacher.server, view, [-1.0] * 4)
        assert refusal is not None
        assert "otherwise" in refusal


@pytest.mark.parametrize(
    "terms",
    [(), ("forward_kl",), ("jsd",), ("reverse_kl", "forward_kl"), ("skewed_reverse_kl",)],
    ids=lambda terms: "+".join(terms) or "none",
)
def test_only_a_reverse_kl_is_learnt_from_the_students_tokens(connected: Connect, terms: tuple[str, ...]):
    with closing(connected(divergence=tuple(Divergence.model_validate({"kind": kind}) for kind in terms))) as teacher:
        assert teacher.given is None
