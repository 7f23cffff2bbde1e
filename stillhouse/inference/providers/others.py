"""Sellers and servers of which no more is known than their words for errors."""

from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import Provider

OTHERS: Final = Provider(
    # Numbers are Zhipu's, those behind `base_resp` MiniMax's; the rest is Qwen's.
    codes={
        FailureKind.QUOTA: "1113 base_resp_1008",
        FailureKind.AUTH: "base_resp_1004 base_resp_2049",
        FailureKind.RATE: "base_resp_1002 base_resp_1039",
        FailureKind.CONTENT: "1301 base_resp_1026 base_resp_1027 data_inspection_failed DataInspectionFailed",
    },
    wordings={
        # SiliconFlow, Fireworks.
        FailureKind.QUOTA: "insufficient balance|balance is insufficient|account .{0,40}suspended",
        # Qwen; MiniMax.
        FailureKind.CONTENT: "datainspectionfailed|may contain inappropriate content|put new_sensitive",
    },
    # llama.cpp; Z.ai; GitHub Models; Zhipu.
    overflow_codes="exceed_context_size_error model_context_window_exceeded tokens_limit_reached 1261",
    overflow=(
        # Most sellers speak of the context, or of a prompt or input that is longer than something.
        r"\bcontext (window|length|size|limit|shift|the overflows)|max(imum)? prompt length"
        r"|\b(prompt|input|all messages)(length|token count|tokens|is|of|but model|[\W\d])*"
        r"(too long|exceeds|greater than|only supports up to)"
        # Cohere and Nova; Kimi; Volcengine; watsonx; Qwen; TGI and Together.
        r"|too many tokens: size limit|too many input tokens\. max|total tokens exceeds the model's max"
        r"|model token limit|exceed max message tokens|input tokens \d+ cannot exceed|range of input length"
        r"|`inputs` (tokens \+ `max_new_tokens` must be|must have less than)"
    ),
)
