"""The results of a training: merged weights, the model card, folders for others and for the hub."""
