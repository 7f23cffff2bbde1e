"""The balancing loss of small mixtures of experts, against transformers' own forward pass."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import Divergence, StudentConfig, TrainerConfig
from stillhouse.errors import ConfigError
from stillhouse.training.head.scores import ScoreName, TokenLosses, TokenScores
from stillhouse.training.loop.passes import Passes
from stillhouse.training.losses import cross_entropy
from stillhouse.training.model.adapters import new_adapter
from stillhouse.training.model.blocks import decoder_blocks, prepare_blocks, wants_compile
from stillhouse.training.model.router_loss import router_loss
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks, deal_microbatches
from stillhouse.training.sharding import full_tensors, shard
from stillhouse.types import Sample

COEF = 0.5
LENGTHS = (24, 9, 15)
SIZES = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    **{"num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
ERNIE = {"moe_num_experts": 6, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 1}
DENSE = {"num_local_experts": 0, "layer_types": ["attention"] * 2, "shared_intermediate_size": 48, "mamba_n_heads": 8}
KINDS = {"qwen3_moe": {}, "mixtral": {}, "gpt_oss": {}, "granitemoe": {}, "olmoe": {}, "ernie4_5_moe": ERNIE}
ALONE = Ranks.single(torch.device("cpu"))


class Likelihood:
    """Cross-entropy."""

    temperature = divergence_temperature = 1.0
    uses_dropout = True
    wants: frozenset[ScoreName] = frozenset()
    divergence: tuple[Divergence, ...] = ()

    def partition(self, sample: Sample) -> str:
        return ""

    def reference(self, samples: object) -> None:
        return None

    def token_values(self, sample: Sample) -> dict[str, list[float]]:
        return {}

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        return TokenLosses(cross_entropy(scores.logprobs_N))


def student(kind: str = "qwen3_moe", coef: float = COEF, *, lora: bool = False) -> Student:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES, **KINDS.get(kind, {}))
    model = causal_lm = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        # New routers are so even that nothing is left to balance.
        for parameter in causal_lm.parameters():
            parameter.normal_(std=0.2)
    if lora:
        settings = StudentConfig(lora_rank=2, dtype="float32", lora_targets=("all-linear", "experts"))
        model = new_adapter(causal_lm, settings, seed=0)
    made = Student(model, causal_lm, load_tokenizer("embedded:student"), kind)
    made.step.router_loss = router_loss(causal_lm, coef)
    return made


def samples() -> list[Sample]:
    torch.manual_seed(1)
    rows = [torch.randint(3, 64, (length,)).tolist() for length in LENGTHS]
    return [Sample(row, [False, *[place % 3 > 0 for place in range(2, len(row))], True], "prompt") for row in rows]


def gradients(made: Student) -> dict[str, Tensor]:
    return {name: p.grad for name, p in made.trained_parameters() if p.grad is not None}


def by_transformers(made: Student, rows: list[Sample]) -> tuple[Tensor, Tensor]:
    """Mean negative log-likelihood of the targets and the loss of the routers, of padded rows."""
    inputs = torch.nn.utils.rnn.pad_sequence([torch.tensor(row.token_ids[:-1]) for row in rows], batch_first=True)
    targets = torch.nn.utils.rnn.pad_sequence(
        [torch.where(torch.tensor(r.loss_mask), torch.tensor(r.token_ids), -100)[1:] for r in rows],
        batch_first=True,
        padding_value=-100,
    )
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(r.token_ids) - 1) for r in rows], batch_first=True)
    outputs = made.causal_lm(inputs, attention_mask=mask.long(), output_router_logits=True, use_cache=False)
    return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten()), outputs.aux_loss


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k == "gpt_oss" else pytest.mark.slow) for k in KINDS])
def test_a_microbatch_has_the_loss_and_gradients_of_transformers_forward(kind: str, packing: bool):
    ours, theirs = student(kind), student(kind)
    result = Passes(ours, ALONE, TrainerConfig(packing=packing)).backward(samples(), Likelihood())
    nll, aux = by_transformers(theirs, samples())
    (nll + COEF * aux).backward()
    assert result.loss == pytest.approx((nll + COEF * aux).item(), rel=1e-5)
    assert result.metrics["router_aux_loss"] == pytest.approx(aux.item(), rel=1e-5)
    assert 2 / 6 < result.metrics["expert_max_load"] < 1
    torch.testing.assert_close(gradients(ours), gradients(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("packing", [True, False])
def test_microbatches_count_by_their_targets(packing: bool):
    ours, theirs = student(), student()
    config = TrainerConfig(packing=packing, microbatch_tokens=max(LENGTHS))
    result = Passes(ours, ALONE, config).backward(samples(), Likelihood())
    num_targets = sum(sum(sample.loss_mask) for sample in samples())
    parts = [
        (sum(sum(s.loss_mask) for s in group) / num_targets, by_transformers(theirs, list(group)))
        for group in result.groups
    ]
    assert len(parts) > 1
    sum(share * (nll + COEF * aux) for share, (nll, aux) in parts).backward()
    assert result.metrics["router_aux_loss"] == pytest.approx(sum(share * aux.item() for share, (_, aux) in parts))
    torch.testing.assert_close(gradients(ours), gradients(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_recomputed_blocks_give_the_same_bits(lora: bool):
    plain, recomputed = student(lora=lora), student(lora=lora)
    prepare_blocks(recomputed.causal_lm, compiled=False, checkpointed=True)
    losses = [Passes(made, ALONE, TrainerConfig()).backward(samples(), Likelihood()) for made in (plain, recomputed)]
    assert losses[0].metrics == losses[1].metrics
    torch.testing.assert_close(gradients(recomputed), gradients(plain), rtol=0, atol=0)


def test_blocks_that_give_router_logits_are_not_compiled():
    made = student()
    assert not wants_compile(made, TrainerConfig(router_aux_loss_coef=COEF), num_steps=10**6)
    with pytest.raises(ConfigError, match="with compile = 'on'"):
        wants_compile(made, TrainerConfig(router_aux_loss_coef=COEF, compile="on"), num_steps=1)


def test_a_frozen_router_is_balanced_through_the_layers_below_it():
    with_loss, without = student(lora=True), student(coef=0.0, lora=True)
    for made in (with_loss, without):
        Passes(made, ALONE, TrainerConfig()).backward(samples(), Likelihood())
    moved = [name for name, value in gradients(with_loss).items() if not torch.equal(value, gradients(without)[name])]
    assert moved
    assert not any("gate.weight" in name for name in gradients(with_loss))


def sharded(ranks: Ranks) -> tuple[float, dict[str, Tensor]]:
    made = student()
    # Three samples in two microbatches: the second rank has one, then none.
    passes = Passes(made, ranks, TrainerConfig(microbatch_tokens=max(LENGTHS)))
    shard(made.step, decoder_blocks(made.causal_lm), ranks, torch.float32)
    result = passes.backward(samples(), Likelihood())
    return result.metrics["router_aux_loss"], full_tensors(gradients(made), ranks)


@pytest.mark.slow
def test_sharded_ranks_sum_to_the_gradients_of_one(pair):
    (aux, summed), _ = pair.run(sharded)
    groups = [g for rank in deal_microbatches([samples()[:1], samples()[1:]], 2) for g in rank]
    assert sorted(map(len, groups)) == [1, 2]
    alone = student()
    result = Passes(alone, ALONE, TrainerConfig(microbatch_tokens=max(LENGTHS))).backward(samples(), Likelihood())
    assert aux == pytest.approx(result.metrics["router_aux_loss"], rel=1e-5)
    torch.testing.assert_close(summed, gradients(alone), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "sizes", "reason"),
    [
        ("qwen3", {}, "Qwen3ForCausalLM has no router of experts"),
        ("granitemoehybrid", DENSE, "GraniteMoeHybridForCausalLM has no router of experts"),
        (
            "dots1",
            {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
            "by a bias of",
        ),
        ("llama4_text", {"intermediate_size_mlp": 48}, "transformers has no load balancing loss for Llama4ForCausalLM"),
    ],
)
def test_a_student_without_such_a_loss_is_refused_by_name(kind: str, sizes: dict[str, int], reason: str):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(SIZES | sizes)))
    with pytest.raises(ConfigError, match=f"router_aux_loss_coef = 0.01: .*{reason}.*Leave it at 0"):
        router_loss(model, 0.01)
    assert router_loss(model, 0.0) is None


def test_configs_without_the_option_keep_their_form():
    assert "router_aux_loss_coef" not in TrainerConfig().model_dump(mode="json")
