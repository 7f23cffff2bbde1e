"""The trainer and TRL on a GPU, at the shapes of Qwen3."""
