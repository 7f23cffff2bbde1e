"""On-policy distillation by the trainer and by TRL on a GPU, at the shapes of Qwen3."""
