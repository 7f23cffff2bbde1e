"""Keys and values that configs had once, and what to use instead."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stillhouse.config.training import TrainerConfig

_OWN_SCORE: Final = "leave it out, or score rows by a function of your own (dataset.labels.file, filters.scores)"
_OWN_OBJECTION: Final = "write it as a function of dataset.labels.file that returns its objection"
_OWN_LOSS: Final = "leave it out, or write it as a loss of your own (on_policy.loss)"
_ONE_BUDGET: Final = "set runtime.failure_budget, which holds for every stage"
_PRICE: Final = "set usd_per_million_tokens there, as {prompt: 0.25, completion: 2.0}"
_OWN_SEARCH: Final = "search the web by an MCP server (tools.mcp), or by a function of your own in tools.file"
_OF_TRAINERS: Final = {
    "activation_offload": "leave it out; {}.trainer.gradient_checkpointing `on` is the faster way to the same end",
    "beta1": "use {}.trainer.betas",
    "beta2": "use {}.trainer.betas",
    "decay_share": "leave it out: `wsd` falls over the last fifth of the steps",
    "divergence_factor": "leave it out: three times the lowest loss counts as diverged",
    "keep_checkpoints": "leave it out: the newest two are kept",
    "min_learning_rate": "leave it out: schedules end at 0",
    "router_aux_loss_coef": "leave it out: adapters leave routers frozen; lower {}.learning_rate for all weights",
    **{name: f"use {{}}.trainer.{name}" for name in TrainerConfig.model_fields},
}
"""Keys that both `sft` and `on_policy` had; `{}` stands for either."""
_OF_TEACHERS: Final = {
    "max_in_flight": "leave it out",
    "offload": "set dtype to `4bit`, or serve the teacher by vLLM",
    "kind=snapshot": "use `ema` with on_policy.trainer.ema_decay, or `base`",
    "quantised": "set dtype to `4bit`",
    "refresh_every_steps": "leave it out",
    "request_timeout_s": "use runtime.request_timeout_s",
}
REMOVED: Final[dict[str, str]] = {
    **{
        f"{section}.teachers.{name}": instead
        for section in ("sft", "on_policy")
        for name, instead in _OF_TEACHERS.items()
    },
    **{
        f"{section}.{name}": instead.format(section)
        for section in ("sft", "on_policy")
        for name, instead in _OF_TRAINERS.items()
    },
    "approval.at_timeout": "leave it out: what nobody approves in time is rejected",
    **dict.fromkeys(
        ("dataset.embeddings", "dataset.filters.max_teacher_nll", "dataset.filters.min_teacher_nll"), _OWN_SCORE
    ),
    **{
        f"dataset.labels.{name}": "leave it out where a filter goes by it; else name it in dataset.labels.measure"
        for name in ("language", "privacy", "rewards", "student_nll")
    },
    "dataset.labels.answer_pattern": _OWN_OBJECTION,
    "dataset.labels.answer_schema": "use rollouts.response_schema, or `answer_schema` in the metadata and the verifier "
    "`json`",
    "dataset.labels.teacher_nll": "use `stillhouse score`, which prints the teacher's mean over all rows",
    **{
        f"dataset.filters.{end}_{name}": f"use dataset.filters.{name}: [lowest, highest], either of which may be null"
        for name in ("turns", "answer_chars", "student_nll", "student_pass_rate")
        for end in ("min", "max")
    },
    **{
        f"dataset.filters.{end}_scores": "use dataset.filters.scores: {NAME: [lowest, highest]}, either may be null"
        for end in ("min", "max")
    },
    "dataset.filters.max_tokens": "set student.max_length",
    "dataset.duplicates.near": "leave it out where dataset.filters.duplicates is near; else name near_duplicates in "
    "dataset.labels.measure",
    "dataset.duplicates.num_permutations": "leave it out: signatures have 128 hashes",
    "dataset.duplicates.shingle_words": "leave it out: shingles have 5 words",
    "dataset.contamination.ngrams": "set dataset.filters.contamination_ngrams; overlaps of 8, 13 and so many words are "
    "looked for",
    "dataset.contamination.sets": "name the sets in dataset.contamination itself, as NAME: FILE",
    "dataset.selection.max_diverse_rows": "leave it out; selection.target_rows keeps a number of rows, and "
    "filters.duplicates `near` drops those that are alike",
    "dataset.selection.pairs": "leave it out; pair the rows of train.parquet and rejected.parquet by `prompt_id`",
    **{
        f"dataset.selection.{end}_pass_rate": "use dataset.selection.pass_rate: [lowest, highest], either may be null"
        for end in ("min", "max")
    },
    **{f"dataset.selection.{key}": "use dataset.selection.prefer: score:NAME" for key in ("score", "prefer=score")},
    **{
        f"{model}.{name}": _PRICE
        for model in ("dataset.judge.model", "teacher")
        for name in ("usd_per_million_completion_tokens", "usd_per_million_prompt_tokens")
    },
    **{f"{stage}.failure_budget": _ONE_BUDGET for stage in ("dataset.judge", "evaluation", "prompts", "rollouts")},
    "runtime.reward_failure_budget": _ONE_BUDGET,
    "dataset.split_seed": "leave it out: each prompt's content decides, whatever prompts.split_seed is",
    "evaluation.confidence": "leave it out: intervals are of 95 %",
    "prompts.format": "leave it out, and give the file the ending of its format",
    "prompts.hf_split": "name the split in prompts.source, as `hf:NAME[SPLIT]`",
    "rollouts.continue_message": "leave it out, as rollouts end with the first answer without a tool call",
    "rollouts.termination_policy": "leave it out: rollouts end with the first answer without a tool call",
    "rollouts.max_rollout_usd": "set rollouts.max_rollout_tokens, and budget.max_usd for the run",
    "runtime.embeddings_api_key_env": "leave it out: nothing is embedded any more",
    "runtime.label_processes": "set runtime.num_threads, which says how many processes label and render rows",
    "runtime.max_outage_s": "leave it out: a server that answered before is waited for up to ten minutes",
    "runtime.peak_tflops": "leave it out: the peak speed is measured at the start",
    "runtime.ray_python": "leave it out, and have the interpreter under the same path on all hosts",
    "runtime.rendezvous": "set the environment variables MASTER_ADDR and MASTER_PORT of torch",
    "sft.label_smoothing": "leave it out; the loss `kl` learns from a teacher what else could stand there",
    "sft.loss=dft": "use `nll`, or `kl` with a teacher",
    "sft.max_tokens": "leave it out: answers are as long as student.max_length allows",
    "sft.max_turns": "leave it out: 10 completions of an answer are enough to measure",
    "sft.soft_weight": "leave it out, or weigh the cross-entropy by sft.hard_weight",
    **{f"sft.train_on_{part}": "list what is learnt in sft.train_on" for part in ("reasoning", "text", "tool_calls")},
    "sft.z_loss": "leave it out, or lower sft.learning_rate",
    "student.cast_lm_head_to_fp32": "leave it out; student.dtype `float32` computes all in float32",
    "student.lora_variant=dora": "use `lora` or `rslora`",
    "student.neftune_alpha": "leave it out, or set student.lora_dropout",
    "on_policy.adv_estimator=mean": "use `rloo`, which is that times G / (G - 1) in a group of G",
    "on_policy.advantage_against": "leave it out: the KL is taken under the weights being trained",
    "on_policy.agentic": "leave it out: the configured tools decide, and max_turns 1 samples one completion",
    **{f"on_policy.{name}": _OWN_LOSS for name in ("asymmetric", "cispo_max", "cispo_min", "prune", "token_weights")},
    **dict.fromkeys(("on_policy.balance=gaps", "on_policy.balance=spreads"), "use `teachers`, or a teacher's kl_coef"),
    "on_policy.conversation_prefix": "begin the prompts' own `messages` with them",
    **{f"on_policy.correction_{end}": "use on_policy.correction_bounds" for end in ("max", "min")},
    "on_policy.divergence.tail": "leave it out: the tokens outside the k count as one more",
    "on_policy.engine": "set on_policy.engine_url for vLLM, or leave it out",
    "on_policy.kl_baseline": "use a `divergence` of kind reverse_kl, whose variance is lower still",
    "on_policy.kl_discount_factor": "leave it out: each token answers for its own KL",
    "on_policy.kl_in_reward": "leave it out: the KL is taken off the advantage",
    "on_policy.loss_fn=cispo": "use `ppo`, or a loss of your own (on_policy.loss)",
    **{f"on_policy.ppo_clip_{end}": "use on_policy.ppo_clip" for end in ("high", "low")},
    "on_policy.ppo_dual_clip": "leave it out, or bound advantages by adv_clip",
    "on_policy.prefix": "leave it out, or lower on_policy.max_tokens",
    "on_policy.show_every_steps": "leave it out: some trajectories of every 20 steps are shown",
    "on_policy.skip_first_n_tokens": "leave it out",
    "on_policy.top_p": "leave it out: the student is sampled from its own distribution",
    "promotion.tag_level": "set promotion.level, which holds for tags as well",
    "promotion.placebo": "compare with a second training whose on_policy.loss ignores the teacher",
    "tools.browse_max_characters": "set tools.max_result_characters, which holds for pages as well",
    **dict.fromkeys(("tools.builtin=search", "tools.search_url"), _OWN_SEARCH),
    "tools.mcp.timeout_s": "set tools.timeout_s, which holds for MCP servers as well",
    "tracking.alias": "load the newest student by the alias `candidate`, or name one in promotion.alias",
    "tracking.num_sample_trajectories": "leave it out: reports show some 20; `stillhouse view` shows all",
}
"""Dotted path of a key, or path=value of a value that a key no longer takes, and what to use instead."""


def take_removed(body: Mapping[str, Any]) -> dict[str, str]:
    """Take each removed key, and each key with a removed value, out of `body`; return a sentence for each."""
    removed = {}
    for key, instead in REMOVED.items():
        path, _, value = key.partition("=")
        *parents, name = path.split(".")
        for section in _sections(body, parents):
            if name in section and (not value or value in _items(section[name])):
                del section[name]
                removed[key] = f"{key} was removed in this version: {instead}"
    return removed


def _sections(section: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield the mappings at a path, in each item of the lists on it."""
    if isinstance(section, list | tuple):
        for item in section:
            yield from _sections(item, path)
    elif isinstance(section, Mapping):
        if not path:
            yield section
        elif path[0] in section:
            yield from _sections(section[path[0]], path[1:])


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)
