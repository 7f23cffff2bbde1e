"""`ModelSize`: the size of a decoder by its files, with nothing loaded."""

from stillhouse.inference.vllm.launch import kv_bytes, model_facts


class ModelSize:
    """Counts of weights; `weights` is 0 where the model is not here, or its config names sizes otherwise."""

    def __init__(self, ref: str) -> None:
        facts, num_bytes = model_facts(ref)
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
        self.hidden, self.layers, heads, inner, self.vocabulary = (facts.get(name) or 0 for name in names)
        is_wide = facts.get("dtype", facts.get("torch_dtype")) == "float32"
        self.weights = num_bytes / (4 if is_wide else 2) if self.hidden and self.layers else 0.0
        self.tables = self.hidden * self.vocabulary * (1 if facts.get("tie_word_embeddings", True) else 2)
        attention = (heads + (facts.get("num_key_value_heads") or heads)) * (
            facts.get("head_dim") or self.hidden // (heads or 1)
        )
        # Of a mixture, the experts that a token goes to.
        inner = (facts.get("num_experts_per_tok") or 0) * (facts.get("moe_intermediate_size") or 0) or inner
        self._widths = 4 * self.hidden + 2 * attention + 3 * inner
        self.adapter = self.layers * (self._widths + 3 * self.hidden)
        """Of each unit of an adapter's rank."""
        self.cache = kv_bytes(facts)
        """Bytes of a token in 16 bits."""

    def quantised(self, itemsize: int) -> float:
        """Return the bytes with the blocks in 4 bits, as `training.model.load` has them."""
        return 0.516 * (self.weights - self.tables) + itemsize * self.tables

    def step(self, num_tokens: int, itemsize: int, *, trains_all: bool, compares: bool) -> float:
        """Return the bytes that a step adds on a GPU, with checkpointing and compiled blocks: a rule of thumb.

        These are the hidden states between blocks, and the larger of a block's activations and of the output layer's
        chunk of logits, the teacher's beside it where it `compares`; `training.model.memory` counts them for Qwen3's
        blocks as about twice the widths of what they compute, compiled 0.7 of it, and as much for the gradients.
        """
        block = 2.8 * itemsize * num_tokens * self._widths
        logits = min(self.vocabulary * num_tokens, 1 << 29)
        head = logits * (itemsize + compares * (itemsize + 8)) + num_tokens * self.hidden * (2 * itemsize + 4)
        head += self.hidden * self.vocabulary * (itemsize + 4) * trains_all
        return self.layers * self.hidden * num_tokens * (4 if trains_all else itemsize) + max(block, head)
