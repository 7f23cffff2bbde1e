"""The attention of the models that are loaded here, registered with transformers under a name of its own."""

from stillhouse.attention.function import ATTENTION, use_attention

__all__ = ["ATTENTION", "use_attention"]
