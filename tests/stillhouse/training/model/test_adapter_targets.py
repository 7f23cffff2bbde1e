from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.training.model.adapter_targets import adapter_targets, fused_experts
from stillhouse.training.model.adapters import adapter_summary, continued_adapter, new_adapter
from stillhouse.training.model.blocks import decoder_blocks
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.transformers import sampling_weights
from stillhouse.training.on_policy.sampling.vllm import VllmEngines
from stillhouse.training.ranks import Ranks
from stillhouse.training.results.merge import merge_into
from stillhouse.training.sharding import full_tensors, shard
from tests.stillhouse.training.sections import on_policy_of

ROWS = [list(range(3, 20)), list(range(20, 45))]
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}
MLA = {"kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj", "q_b_proj"}
FUSED = {"experts.gate_up_proj", "experts.down_proj"}
SIZES = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {
    **MOE,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
SSM = {"mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8, "mamba_d_head": 8}
LINEAR_ATTENTION = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"shared_expert_intermediate_size": 16, "layer_types": ["linear_attention", "full_attention"]},
}
LATENT = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
    "num_key_value_heads": 4,
}
FAMILIES: dict[str, tuple[dict[str, object], set[str], set[str]]] = {
    "qwen3_moe": (MOE, ATTENTION, FUSED),
    "gpt_oss": (MOE, ATTENTION, FUSED),
    "deepseek_v3": (SHARED | LATENT, MLA | MLP, FUSED),
    "falcon_h1": (SSM | {"mamba_d_ssm": 32, "mamba_n_heads": 4}, ATTENTION | MLP | {"in_proj"}, set()),
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 4}, {"c_attn", "c_fc", "c_proj"}, set()),
    "qwen3_next": (MOE | LINEAR_ATTENTION, ATTENTION | MLP | {"in_proj_ba", "in_proj_qkvz", "out_proj"}, FUSED),
    "mamba2": ({"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8}, {"in_proj"}, set()),
}


def config(*targets: str, **changes: object) -> StudentConfig:
    settings = {"lora_rank": 4, "lora_alpha": 8, "lora_targets": targets or ("all-linear",), "dtype": "float32"}
    return StudentConfig.model_validate(settings | changes)


def built(kind: str, folder: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(SIZES | FAMILIES[kind][0]))).save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def vision_model() -> PreTrainedModel:
    text = {key: value for key, value in SIZES.items() if "token" not in key}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings = AutoConfig.for_model(
        "gemma3", text_config=text, vision_config={**vision, "image_size": 28, "patch_size": 14}, mm_tokens_per_image=4
    )
    return AutoModelForCausalLM.from_config(settings)


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(input_ids=torch.tensor(ROWS[1:]), use_cache=False).logits


@pytest.mark.parametrize("kind", FAMILIES)
def test_default_adapter_of_each_family_learns_is_continued_and_merged(kind: str, tmp_path: Path):
    _, expected, experts = FAMILIES[kind]
    _trained_and_kept(kind, config(), expected, tmp_path)
    model = built(kind, tmp_path / "base")
    frozen = set(fused_experts(model)) - set(adapter_targets(model, ("all-linear",)).parameters)
    assert {".".join(name.split(".")[-2:]) for name in frozen} == experts


@pytest.mark.parametrize("kind", [kind for kind, (_, _, experts) in FAMILIES.items() if experts])
def test_adapters_on_fused_experts_learn_are_continued_and_merged(kind: str, tmp_path: Path):
    _, layers, experts = FAMILIES[kind]
    _trained_and_kept(kind, config("all-linear", "experts"), layers | experts, tmp_path)


def _trained_and_kept(kind: str, settings: StudentConfig, expected: set[str], tmp_path: Path) -> None:
    adapted = new_adapter(built(kind, tmp_path / "base"), settings, seed=0)
    listed = adapter_summary(adapted).partition(" parameters on ")[2].partition(";")[0]
    assert {entry.split(" ")[0] for entry in listed.split(", ")} == expected
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    with_effect(adapted).train()(
        input_ids=torch.tensor(ROWS[1:]), use_cache=False
    ).logits.float().square().sum().backward()
    assert [name for name, p in trained.items() if p.grad is None or not p.grad.any()] == []
    adapted.eval().peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    continued = continued_adapter(base, tmp_path / "adapter", settings).eval()
    torch.testing.assert_close(logits(continued), logits(adapted), rtol=0, atol=1e-6)
    check = merge_into(tmp_path / "adapter", tmp_path / "merged", ROWS)
    assert check.difference < 1e-5 < check.effect


def test_towers_and_projectors_of_images_get_no_adapter():
    model = vision_model()
    by_default, by_name = adapter_targets(model, ("all-linear",)), adapter_targets(model, ("q_proj",))
    assert all("language_model" in name for name in by_default.modules)
    assert len(by_default.modules) == 14
    assert len(by_name.modules) == 2
    adapted = new_adapter(model, config("q_proj"), seed=0)
    assert "on q_proj (2);" in adapter_summary(adapted)
    assert [n for n, p in adapted.named_parameters() if p.requires_grad and "language_model" not in n] == []


def test_frozen_experts_are_named_with_the_target_that_trains_them(tmp_path: Path):
    adapted = new_adapter(built("qwen3_moe", tmp_path), config(), seed=0)
    assert adapter_summary(adapted) == (
        "the adapter trains 1,792 parameters on k_proj (2), o_proj (2), q_proj (2), v_proj (2); 22,976 stay frozen, "
        "among them the experts (experts.down_proj, experts.gate_up_proj); add `experts` to student.lora_targets to "
        "train them"
    )


@pytest.mark.parametrize("targets", [("all-linear",), ("all-linear", "experts")])
def test_what_peft_cannot_do_on_parameters_is_refused_and_the_remedy_works(tmp_path: Path, targets: tuple[str, ...]):
    model = built("deepseek_v3", tmp_path)
    remedy = sorted(MLA)
    with pytest.raises(ConfigError) as refused:
        new_adapter(model, config(*targets, lora_dropout=0.1), seed=0)
    assert f"Set student.lora_targets to {remedy}" in str(refused.value)
    summary = adapter_summary(new_adapter(model, config(*remedy, lora_dropout=0.1), seed=0))
    assert all(name in summary for name in remedy)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (("experts",), "experts.down_proj (1), experts.gate_up_proj (1);"),
        (("experts.down_proj", "o_proj"), "experts.down_proj (1), o_proj (2);"),
        (("gate_proj",), "gate_proj (2);"),
    ],
)
def test_experts_and_layers_are_named_apart(tmp_path: Path, targets: tuple[str, ...], expected: str):
    adapted = new_adapter(built("deepseek_v3", tmp_path), config(*targets), seed=0)
    assert f"parameters on {expected}" in adapter_summary(adapted)


def test_layer_that_kernels_read_is_refused_and_the_remedy_works(tmp_path: Path):
    model = built("mamba2", tmp_path)
    with pytest.raises(ConfigError, match="in_proj"):
        new_adapter(model, config("out_proj"), seed=0)
    assert "on in_proj (2);" in adapter_summary(new_adapter(model, config("in_proj"), seed=0))


def test_adapters_on_experts_are_merged_for_sampling_and_put_back(tmp_path: Path):
    student = student_with_experts(tmp_path)
    expected = logits(student.causal_lm)
    before = {name: p.detach().clone() for name, p in student.model.named_parameters()}
    with sampling_weights(student):
        experts = student.causal_lm.model.layers[0].mlp.experts.get_base_layer()
        assert not torch.equal(experts.down_proj, before[weight_name(student, "layers.0", "down_proj")])
        torch.testing.assert_close(logits(student.causal_lm), expected, rtol=0, atol=1e-5)
    assert torch.equal(logits(student.causal_lm), expected)
    assert all(torch.equal(p, before[name]) for name, p in student.model.named_parameters())


@pytest.mark.slow
def test_two_ranks_give_adapters_on_experts_the_gradients_of_one(pair, tmp_path: Path):
    folder = str(tmp_path / "base")
    built("qwen3_moe", tmp_path / "base")
    expected = sharded_gradients(Ranks.single(torch.device("cpu")), folder, 1.0)
    seen = pair.run(sharded_gradients, folder, 0.5)[0]
    assert any("experts" in name for name in expected)
    for name, gradient in expected.items():
        assert gradient.any()
        torch.testing.assert_close(seen[name], gradient, rtol=1e-4, atol=1e-6)


def sharded_gradients(ranks: Ranks, folder: str, scale: float) -> dict[str, torch.Tensor]:
    """Gradients of `scale` times a loss of the same row in every rank, whose gradients are added up."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapted = with_effect(new_adapter(model, config("all-linear", "experts"), seed=0)).train()
    shard(adapted, decoder_blocks(model), ranks, torch.float32)
    (adapted(input_ids=torch.tensor(ROWS[1:]), use_cache=False).logits.square().sum() * scale).backward()
    return full_tensors({name: p.grad for name, p in adapted.named_parameters() if p.requires_grad}, ranks)


def with_effect(adapted: torch.nn.Module) -> torch.nn.Module:
    """Second matrices other than zero, so that all matrices have gradients."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=generator)
    return adapted


def test_vllm_refuses_adapters_on_experts_before_it_is_asked(tmp_path: Path):
    sampling = on_policy_of({"engine_url": "http://127.0.0.1:9/v1"})
    with pytest.raises(ConfigError, match=r"experts.*student\.lora_targets.*'k_proj'"):
        VllmEngines(student_with_experts(tmp_path), sampling, tmp_path / "weights")


def student_with_experts(tmp_path: Path) -> Student:
    model = built("qwen3_moe", tmp_path / "base")
    adapted = with_effect(new_adapter(model, config("all-linear", "experts"), seed=0)).eval()
    return Student(adapted, model, load_tokenizer("embedded:student"), str(tmp_path / "base"))


def weight_name(student: Student, *parts: str) -> str:
    """Name of the weight below an adapter that has all `parts` in its name."""
    names = [n for n, _ in student.model.named_parameters() if "lora_" not in n and n.endswith(parts[-1])]
    return next(name for name in names if all(part in name for part in parts))
