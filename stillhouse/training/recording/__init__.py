"""Samples and scores the rollouts that on-policy distillation then trains on without a teacher."""
