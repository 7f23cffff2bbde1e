"""From the scores and rewards of a batch to the loss of each token."""
