"""The domain of Stillhouse: prompts, rollouts, dataset, training, evaluation. Knows nothing of orchestration."""
