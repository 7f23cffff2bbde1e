from datetime import UTC, datetime

import pytest

from stillhouse.inference.error_body import classify

WORDINGS = {
    "OpenAI, DeepSeek": "This model's maximum context length is 65536 tokens. However, you requested 70000",
    "OpenAI, Responses": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "OpenRouter": "This endpoint's maximum context length is 131072 tokens. However, you requested 140000.",
    "Poolside": "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    "Anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "Anthropic, both": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Bedrock": "Input is too long for requested model.",
    "Bedrock, Nova": "Too many input tokens. Max input tokens: 8192, request input token count: 11000",
    "Gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Gemini, older": "The input token count exceeds the maximum number of tokens allowed (1048576).",
    "Vertex": "Unable to submit request because the input token count is 9000 but model only supports up to 8192.",
    "Copilot": "prompt token count of 70000 exceeds the limit of 64000",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Mistral": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "Groq": "Please reduce the length of the messages or completion.",
    "Together, TGI": "`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 2048",
    "TEI": "`inputs` must have less than 512 tokens. Given: 600",
    "Fireworks": "The prompt is too long: 9000, model maximum context length: 8191",
    "Perplexity": "The total length of all messages is too long.",
    "Cohere": "too many tokens: size limit exceeded by 11326 tokens. Try using shorter or fewer inputs.",
    "Cohere, older": "total tokens exceeds the model's max of 4096",
    "MiniMax": "invalid params, context window exceeds limit (2013)",
    "Zhipu": "Prompt exceeds max length",
    "Kimi": "Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)",
    "Qwen": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 204800]",
    "Volcengine": "Input length 203743 exceeds the maximum length 202752",
    "Volcengine, images": "Total tokens of image and text exceed max message tokens",
    "watsonx": "the number of input tokens 9000 cannot exceed the total tokens limit 8192 for this model",
    "Cloudflare": "The estimated number of input tokens (9000) exceeded this model context window limit (8192)",
    "vLLM": "You passed 9001 input tokens and requested 2048 output tokens. However, the model's context length is "
    "only 8192 tokens, resulting in a maximum input length of 6144 tokens.",
    "vLLM, full": "max_tokens must be at least 1, got -186. (parameter=max_tokens, value=-186)",
    "SGLang": "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "SGLang, newer": "Input length (700001 tokens) exceeds the maximum allowed length (536826 tokens).",
    "llama.cpp": "request (66202 tokens) exceeds the available context size (65536 tokens), try increasing it",
    "llama.cpp, 500": "Context size has been exceeded.",
    "ik_llama.cpp": "context shift is disabled",
    "RKLLM": "Prompt is 11543 tokens but the model context window is 4096 tokens.",
    "TensorRT-LLM": "Prompt length (9000) exceeds maximum input length (8192)",
    "TabbyAPI": "Prompt length 9000 is greater than max_seq_len 8192",
    "Ollama": "prompt too long; exceeded max context length by 9 tokens",
    "LM Studio": "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with "
    "context length of only 32768 tokens, which is not enough.",
    "LM Studio, older": "The number of tokens to keep from the initial prompt is greater than the context length",
}
OTHERS = (
    "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7000, please reduce your "
    "message size and try again.",
    "Too many tokens, please wait before trying again.",
    "max_tokens is too large: 200000. This model supports at most 16384 completion tokens, got 200000.",
    "max_tokens: 200000 > 64000, which is the maximum allowed number of output tokens",
    "`max_tokens` must be less than or equal to `16384`, the maximum value for `max_tokens` is less than the "
    "`context_window` for this model",
    "max_output_tokens (200000) exceeds model maximum output tokens (128000)",
    "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40",
    "Request Entity Too Large",
    "temperature: Input should be greater than or equal to 0",
)


def is_overflow(message: str, **error: str) -> bool:
    return classify(400, {}, {"error": {"message": message, **error}}, datetime.now(UTC)).context_overflow


@pytest.mark.parametrize("message", WORDINGS.values(), ids=WORDINGS)
def test_each_sellers_wording_is_recognised(message: str) -> None:
    assert is_overflow(message)


@pytest.mark.parametrize("message", OTHERS)
def test_limits_of_a_minute_and_of_max_tokens_are_another_thing(message: str) -> None:
    assert not is_overflow(message, type="invalid_request_error")


@pytest.mark.parametrize(
    "code", ["context_length_exceeded", "exceed_context_size_error", "tokens_limit_reached", "1261"]
)
def test_a_code_needs_no_wording(code: str) -> None:
    assert is_overflow("no", code=code)
