"""The trainer against TRL's `SFTTrainer`."""
