"""The sellers and servers of models that are known, with what their requests and errors are like."""

from dataclasses import replace
from typing import Final

from stillhouse import sellers
from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import OVERFLOW, Provider
from stillhouse.inference.rate_limit.headers import LimitScope
from stillhouse.inference.sampling import Sampling
from stillhouse.inference.schema_forms import BOUNDS, CLOSED, SILENT, SchemaForm
from stillhouse.types import JsonObject

OPENAI: Final = Provider(
    sellers.OPENAI,
    # Newer models refuse `max_tokens`; most other endpoints know nothing else.
    token_limit="max_completion_tokens",
    # https://platform.openai.com/docs/guides/structured-outputs
    answer_form=SchemaForm(is_closed=True, kept=BOUNDS | SILENT | {"format", "const", "$ref"}),
    codes={
        FailureKind.QUOTA: "insufficient_quota billing_hard_limit_reached billing_not_active",
        FailureKind.RATE: "rate_limit_exceeded",
        # Of flex, whose lack of capacity is no limit of the account.
        FailureKind.BUSY: "resource_unavailable",
        FailureKind.CONTENT: "content_filter content_policy_violation invalid_prompt bio_policy",
        OVERFLOW: "context_length_exceeded",
    },
    wordings={
        FailureKind.QUOTA: r"(requests|tokens) per day",
        FailureKind.CONTENT: "flagged as potentially violating|content was flagged",
        FailureKind.LENGTH: "could not finish the message because max_tokens",
    },
)
"""OpenAI, which refuses keys that it does not know: https://platform.openai.com/docs/api-reference/chat."""
AZURE: Final = replace(
    OPENAI,
    seller=sellers.AZURE,
    codes={FailureKind.CONTENT: "ResponsibleAIPolicyViolation"},
    wordings={FailureKind.CONTENT: "content management policy|contentpolicyviolation"},
)
"""OpenAI's models at Azure: https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle."""


class _OpenRouter(Provider):
    def chat_keys(self, sampling: Sampling) -> JsonObject:
        # Without `usage` OpenRouter does not say what a request cost.
        return {**super().chat_keys(sampling), "usage": {"include": True}}

    def effort_keys(self, effort: str) -> JsonObject:
        return {"reasoning": {"effort": effort}}


OPENROUTER: Final = _OpenRouter(
    sellers.OPENROUTER,
    has_token_ids=True,
    wordings={
        # A 402 while other requests hold the rest of the credit.
        FailureKind.RATE: "in_flight_budget_exhausted",
        FailureKind.BUSY: "upstream_provider_shared_pool",
        FailureKind.QUOTA: "free-models-per-day|limit_rpd/",
    },
)
"""OpenRouter, a router to many sellers: https://openrouter.ai/docs/api-reference/chat-completion."""
ANTHROPIC: Final = Provider(
    sellers.ANTHROPIC,
    # https://platform.claude.com/docs/en/build-with-claude/structured-outputs
    answer_form=CLOSED,
    codes={FailureKind.QUOTA: "billing_error"},
    wordings={
        # With a 400, but for the last.
        FailureKind.QUOTA: "reached your specified (workspace )?api usage limits|credit balance is too low|extra usage",
    },
)
"""Anthropic, by its own API and by the one in OpenAI's form: https://platform.claude.com/docs/en/api/errors."""
GEMINI: Final = Provider(
    sellers.GEMINI,
    codes={FailureKind.RATE: "RESOURCE_EXHAUSTED"},
    wordings={
        # In the id of the quota, even where the message asks for a retry within a minute.
        FailureKind.QUOTA: "perday|check your plan and billing details.{0,300}limit: 0",
        FailureKind.AUTH: "api key not valid|api_key_invalid|api key expired",
    },
)
"""Gemini in OpenAI's form; limits stand in its errors alone: https://ai.google.dev/gemini-api/docs/openai."""
MISTRAL: Final = Provider(sellers.MISTRAL, seed="random_seed")
"""Mistral's API, which refuses keys that it does not know: https://docs.mistral.ai/api."""
GROQ: Final = Provider(
    sellers.GROQ,
    token_limit="max_completion_tokens",
    limits_requests_by_day=True,
    answer_form=CLOSED,
    codes={FailureKind.MALFORMED: "tool_use_failed json_validate_failed output_parse_failed"},
    wordings={OVERFLOW: r"reduce the length of the (messages|prompt)"},
)
"""Groq's API: https://console.groq.com/docs/api-reference; limits: https://console.groq.com/docs/rate-limits."""
DEEPSEEK: Final = Provider(sellers.DEEPSEEK, wordings={FailureKind.CONTENT: "content exists risk"})
"""DeepSeek's API: https://api-docs.deepseek.com."""
# Of a prompt that fills the context: no request asks for less.
VLLM: Final = Provider(has_token_ids=True, wordings={OVERFLOW: "max_tokens must be at least 1"})
"""vLLM, and any other server of which nothing is known:
https://docs.vllm.ai/en/latest/serving/openai_compatible_server."""
SGLANG: Final = Provider(wordings={OVERFLOW: "longer than the model's context|requested token count exceeds"})
"""SGLang: https://docs.sglang.ai/basic_usage/openai_api."""
OTHERS: Final = Provider(
    # Numbers are Zhipu's, those behind `base_resp` MiniMax's; the rest is Qwen's.
    codes={
        FailureKind.QUOTA: "1113 base_resp_1008",
        FailureKind.AUTH: "base_resp_1004 base_resp_2049",
        FailureKind.RATE: "base_resp_1002 base_resp_1039",
        FailureKind.CONTENT: "1301 base_resp_1026 base_resp_1027 data_inspection_failed DataInspectionFailed",
        # llama.cpp; Z.ai; GitHub Models; Zhipu.
        OVERFLOW: "exceed_context_size_error model_context_window_exceeded tokens_limit_reached 1261",
    },
    wordings={
        # SiliconFlow, Fireworks.
        FailureKind.QUOTA: "insufficient balance|balance is insufficient|account .{0,40}suspended",
        # Of servers that answer 400 while they have no capacity.
        FailureKind.TRANSIENT: "overloaded|try again later|temporarily unavailable|server is busy",
        LimitScope.CONCURRENCY: "concurren|in flight|at once|simultaneous|parallel requests|overloaded",
        LimitScope.TOKENS: r"tokens per min|\(tpm\)|tokens_per_min|token rate|tokens per second|input tokens",
        LimitScope.REQUESTS: r"requests per min|\(rpm\)|requests_per_min|request rate|requests per second",
        # Qwen; MiniMax.
        FailureKind.CONTENT: "datainspectionfailed|may contain inappropriate content|put new_sensitive",
        OVERFLOW: (
            # Most sellers speak of the context, or of a prompt or input that is longer than something.
            r"\bcontext (window|length|size|limit|shift|the overflows)|max(imum)? prompt length"
            r"|\b(prompt|input|all messages)(length|token count|tokens|is|of|but model|[\W\d])*"
            r"(too long|exceeds|greater than|only supports up to)"
            # Cohere and Nova; Kimi; Volcengine; watsonx; Qwen; TGI and Together.
            r"|too many tokens: size limit|too many input tokens\. max|total tokens exceeds the model's max"
            r"|model token limit|exceed max message tokens|input tokens \d+ cannot exceed|range of input length"
            r"|`inputs` (tokens \+ `max_new_tokens` must be|must have less than)"
        ),
    },
)
"""Sellers and servers of which no more is known than their words for errors."""


class _OwnServer(Provider):
    def schema_keys(self, schema: JsonObject) -> JsonObject:
        """Return nothing: it samples freely, and answers are checked here in any case."""
        return {}

    def top_token_keys(self) -> JsonObject:
        # It gives them under the sampling temperature, unless it is asked otherwise.
        return {**super().top_token_keys(), "raw_logprobs": True}


OWN_SERVER: Final = _OwnServer(has_token_ids=True)
"""The server of `stillhouse.serving`, which a run starts for a local model."""
