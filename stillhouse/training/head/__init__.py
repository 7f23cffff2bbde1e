"""The output layer fused with the loss."""
