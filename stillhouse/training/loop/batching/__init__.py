"""Which samples a step trains on, and how they become the tensors of a forward pass."""
