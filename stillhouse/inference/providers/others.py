"""Sellers and servers of which no more is known than their words for errors."""

from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import OVERFLOW, Provider
from stillhouse.inference.rate_limit.headers import LimitScope

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
