"""On-policy distillation against TRL's `DistillationTrainer`."""
