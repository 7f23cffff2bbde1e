"""What training leaves behind: merged weights, the model card, folders for others and for the hub."""
