"""The trainer, whatever the method: batches, passes, updates, checkpoints, ranks."""
