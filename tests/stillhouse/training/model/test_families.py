"""Every family of causal models that transformers knows, tiny and random: the loss and gradients of our forward passes.

They are held against plain ones: one row at a time, without padding, cross entropy of the model's own logits.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.errors import TrainingError
from stillhouse.training.head.scores import TokenLosses, TokenScores
from stillhouse.training.model.adapter_targets import adapter_targets, fused_experts, labels
from stillhouse.training.model.microbatches import collate
from stillhouse.training.model.student import Student
from stillhouse.types import Sample

KNOWN = Path(__file__).with_name("families.jsonl")
"""Outcome by family, which `docs/reference/models.md` tells."""
WINDOW = 8
LENGTHS = (4, 22, 41, 9)
"""Tokens of the rows: below the window, and several times as long."""
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "decoder_hidden_size", "embedding_size",
                     "word_embed_proj_dim", "input_embedding_size", "output_embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "decoder_ffn_dim",
                     "encoder_ffn_dim", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "expert_intermediate_size", "q_lora_rank", "kv_lora_rank",
                     "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers",
                     "num_key_value_heads", "num_kv_heads", "num_experts_per_tok", "num_experts_per_token", "moe_topk",
                     "moe_k", "top_k_experts", "mamba_n_groups", "linear_num_key_heads", "num_blocks"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
                     "decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts",
                     "moe_num_experts", "mamba_n_heads", "linear_num_value_heads", "rotary_dim"), 4),
    **dict.fromkeys(("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "attention_head_dim",
                     "mamba_d_head", "mamba_d_state", "state_size", "ssm_state_size", "mamba_head_dim", "chunk_size",
                     "mamba_chunk_size", "linear_key_head_dim", "linear_value_head_dim", "global_head_dim"), 8),
    **dict.fromkeys(("sliding_window_size", "attention_chunk_size", "window_size"), WINDOW),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len"), 128),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 96),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "first_k_dense_replace",
                     "moe_num_shared_experts"), 1),
}  # fmt: skip
"""Of settings that are numbers by default."""
GIVEN = {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 1,
         "initializer_range": 0.1, "init_std": 0.1, "embed_init_std": 0.1,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
"""Of settings that a family has, whatever their default: weights are large enough to show what attention sees."""
STATES = {"mamba_expand": 1, "mamba_d_head": 8, "mamba_n_heads": 4}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
PARTICULAR: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2},
    "bamba": STATES,
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
    },
    "dbrx": {
        "attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 32},
    },
    "deepseek_v2": ROUTED,
    "dots1": {**ROUTED, "n_shared_experts": 1, "moe_intermediate_size": 16},
    "falcon": {"head_dim": None, "num_kv_heads": 4},
    "falcon_h1": {**STATES, "mamba_d_ssm": 32},
    "gemma3n_text": {
        "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0] * 4, "intermediate_size": 48, "laurel_rank": 4,
        "hidden_size_per_layer_input": 8,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**STATES, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"rope_parameters": ROPE, "head_dim": 8},
    "hunyuan_v1_moe": {"rope_parameters": ROPE, "head_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "n_groups": 1},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "prophetnet": {"num_hidden_layers": None, "num_encoder_layers": 2, "num_decoder_layers": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [8, 24], "axial_pos_shape": [8, 16]},
    "xlnet": {"max_position_embeddings": None},
    "xlstm": {"v_head_dim": None},
    "zamba2": {"layers_block_type": ["mamba", "hybrid", "mamba"], "num_hidden_layers": 3, "mamba_ngroups": 1},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
NOT_BUILT = {
    "blt": "takes bytes and patches of them",
    "dots3_note": "holds the model of dots3_note_text",
    "gemma3n": "needs the package timm",
    "gemma4_assistant": "drafts for another model",
    "gemma4_unified_assistant": "drafts for another model",
    "musicgen": "takes codes of sound",
    "musicgen_melody": "takes codes of sound",
    "zamba": "its class does not load in this version",
}
"""Families that no small config makes, or that are no language models of their own."""
REASONS = {
    "depend on the tokens after it": "it is not causal",
    "does something else to its logits": "its logits are more than its output layer's product",
    "decoder of a model with an encoder": "it needs an encoder",
    "forward pass of three tokens fails": "it takes more than tokens",
    "its attention is 'eager'": "transformers has no `sdpa` for it",
    "its attention is 'sdpa'": "it calls `sdpa` itself",
    "depends on masks": "its attention depends on masks",
    "in its mask alone": "its window is in its mask alone",
    "hidden states of": "its layers mix the samples of a row",
    "in-place": "it changes its embeddings in place",
}
"""Reasons as the page has them, by a part of the message."""
FAST = ("llama", "qwen3", "gemma2", "gemma3", "mistral", "phi3", "phimoe", "granite", "gpt_oss", "qwen3_moe",
        "deepseek_v3", "mamba2", "falcon_h1", "llama4", "bert")  # fmt: skip


class Nll:
    """The smallest part of a method that the head needs."""

    temperature = divergence_temperature = 1.0
    wants_entropy, divergence = False, ()

    def loss(self, scores: TokenScores, values: Mapping[str, torch.Tensor]) -> TokenLosses:
        return TokenLosses(-scores.logprobs_N)


def settings_of(config: PreTrainedConfig) -> dict[str, Any]:
    """Small sizes for whatever the config has, and for the configs inside it."""
    settings: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            settings[name] = settings_of(value)
        elif name in GIVEN and not isinstance(value, list):
            settings[name] = GIVEN[name]
        elif isinstance(value, int) and not isinstance(value, bool) and name in SIZES:
            settings[name] = SIZES[name]
        elif isinstance(value, float) and ("drop" in name or "jitter" in name):
            settings[name] = 0.0
    if "kv_lora_rank" in settings and "num_key_value_heads" in settings:
        settings["num_key_value_heads"] = SIZES["num_attention_heads"]
    return settings


def tiny(family: str) -> PreTrainedModel:
    usual = AutoConfig.for_model(family)
    settings = settings_of(usual) | PARTICULAR.get(family, {})
    torch.manual_seed(0)
    config = type(usual)(**{name: value for name, value in settings.items() if value is not None})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def rows_of(model: PreTrainedModel) -> list[Sample]:
    generator = torch.Generator().manual_seed(1)
    size = model.config.get_text_config().vocab_size
    return [
        Sample(torch.randint(3, size, (n,), generator=generator).tolist(), [False] * 2 + [True] * (n - 2), f"of {n}")
        for n in LENGTHS
    ]


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def plain(model: PreTrainedModel, rows: list[Sample]) -> tuple[float, dict[str, torch.Tensor]]:
    """Sum of the losses of all rows, one at a time, and its gradients."""
    total = 0.0
    for row in rows:
        ids_T, learnt_T = torch.tensor(row.token_ids), torch.tensor(row.loss_mask)
        logits_TV = model(input_ids=ids_T[None], use_cache=False).logits[0]
        loss = cross_entropy(logits_TV[:-1], ids_T.where(learnt_T, -100)[1:], reduction="sum")
        loss.backward()
        total += loss.item()
    return total, gradients(model)


def check(student: Student, rows: list[Sample], expected: tuple[float, dict[str, torch.Tensor]], packing: bool) -> None:
    sums = student.step(collate(rows, lambda row: {}, torch.device("cpu"), packing=packing), Nll(), 1.0)
    sums.loss.backward()
    loss, wanted = expected
    seen = gradients(student.causal_lm)
    assert sums.loss.item() == pytest.approx(loss, rel=1e-5)
    largest = max(gradient.abs().max() for gradient in wanted.values())
    for name in wanted.keys() | seen.keys():
        both = [each.get(name, torch.zeros(1)) for each in (wanted, seen)]
        assert (both[0] - both[1]).norm() <= 1e-4 * (both[0].norm() + 1e-2 * largest), name


def measured(family: str, warnings: list[str]) -> dict[str, Any]:
    """The page's entry; fails where our forward pass is not the plain one."""
    model = tiny(family)
    try:
        student = Student(model, model, load_tokenizer("embedded:student"), family)
    except TrainingError as error:
        refused = {"rows": "refused", "reason": reason_of(str(error))}
        return {"family": family, **refused, "adapters": [], "experts": []}
    rows = rows_of(model)
    expected = plain(model.train(), rows)
    model.eval()
    warnings.clear()
    packs = student.packs_exactly()
    reason = {"reason": reason_of(warnings[0])} if warnings else {}
    model.train()
    for packing in {packs, False}:
        check(student, rows, expected, packing)
    targets = adapter_targets(model, ("all-linear",))
    frozen = [name for name in fused_experts(model) if name not in targets.parameters]
    return {
        "family": family,
        "rows": "packed" if packs else "padded",
        **reason,
        "adapters": labels([*targets.modules, *targets.parameters]),
        "experts": [name.removeprefix("experts.") for name in labels(frozen)],
    }


def reason_of(message: str) -> str:
    return next(reason for part, reason in REASONS.items() if part in message)


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """Messages of the check of packing."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("stillhouse.training.model.packing")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


@pytest.mark.parametrize("family", FAST)
def test_a_family_has_the_loss_and_gradients_of_plain_passes_or_is_refused(family: str, warnings: list[str]) -> None:
    entries = {entry["family"]: entry for entry in map(json.loads, KNOWN.read_text().splitlines())}
    assert measured(family, warnings) == entries[family]


@pytest.mark.slow
def test_every_family_is_as_known(tmp_path: Path, warnings: list[str]) -> None:
    families = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(NOT_BUILT))
    found = tmp_path / KNOWN.name
    found.write_text("".join(json.dumps(measured(family, warnings)) + "\n" for family in families))
    assert KNOWN.read_text() == found.read_text(), f"cp {found} {KNOWN}, and mend the page of models"
