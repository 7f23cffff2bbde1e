"""Sellers of which no more is known than their words for errors."""

from collections.abc import Mapping
from typing import ClassVar

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.providers.provider import Provider


class Common(Provider):
    """Words that most sellers use."""

    overflow_codes: ClassVar[str] = "model_context_window_exceeded tokens_limit_reached"
    # They speak of the context, or of a prompt or input that is longer than something.
    overflow: ClassVar[str] = (
        r"\bcontext (window|length|limit)|max(imum)? prompt length"
        r"|\b(prompt|input|all messages)(length|token count|tokens|is|of|but model|[\W\d])*"
        r"(too long|exceeds|greater than|only supports up to)"
    )
    wordings: ClassVar[Mapping[FailureKind, str]] = {
        FailureKind.QUOTA: "insufficient balance|balance is insufficient|account .{0,20}suspended",
    }


class Zhipu(Provider):
    """Its codes are numbers: https://docs.bigmodel.cn/cn/api/api-code."""

    codes: ClassVar[Mapping[FailureKind, str]] = {FailureKind.QUOTA: "1113", FailureKind.CONTENT: "1301"}
    overflow_codes: ClassVar[str] = "1261"


class MiniMax(Provider):
    """Its codes stand in `base_resp` of an answer with HTTP 200."""

    codes: ClassVar[Mapping[FailureKind, str]] = {
        FailureKind.QUOTA: "base_resp_1008",
        FailureKind.AUTH: "base_resp_1004 base_resp_2049",
        FailureKind.RATE: "base_resp_1002 base_resp_1039",
        FailureKind.CONTENT: "base_resp_1026 base_resp_1027",
    }
    wordings: ClassVar[Mapping[FailureKind, str]] = {FailureKind.CONTENT: "put new_sensitive"}


class Qwen(Provider):
    """https://help.aliyun.com/zh/model-studio/error-code."""

    codes: ClassVar[Mapping[FailureKind, str]] = {
        FailureKind.CONTENT: "data_inspection_failed DataInspectionFailed",
    }
    wordings: ClassVar[Mapping[FailureKind, str]] = {
        FailureKind.CONTENT: "datainspectionfailed|may contain inappropriate content"
    }
    overflow: ClassVar[str] = "range of input length"


class Cohere(Provider):
    """https://docs.cohere.com/reference/errors; Nova at Bedrock words the second."""

    overflow: ClassVar[str] = (
        r"too many tokens: size limit|too many input tokens\. max|total tokens exceeds the model's max"
    )


class Kimi(Provider):
    """https://platform.moonshot.ai/docs/api/chat."""

    overflow: ClassVar[str] = "model token limit"


class Volcengine(Provider):
    """https://www.volcengine.com/docs/82379/1299023."""

    overflow: ClassVar[str] = "exceed max message tokens"


class Watsonx(Provider):
    """https://cloud.ibm.com/apidocs/watsonx-ai."""

    overflow: ClassVar[str] = r"input tokens \d+ cannot exceed"


class TextGenerationInference(Provider):
    """Hugging Face's server, which Together's words are of as well."""

    overflow: ClassVar[str] = r"`inputs` (tokens \+ `max_new_tokens` must be|must have less than)"


WORDED: tuple[Provider, ...] = (
    *(Common(), Zhipu(), MiniMax(), Qwen(), Cohere(), Kimi(), Volcengine(), Watsonx(), TextGenerationInference()),
)
