"""Fewer tokens: which of those that were sampled are learnt from, and with what weight.

It is decided once a batch, before the first update on it, and stored with the batch: a quantile over a trajectory or a
batch is then the same however training splits it into microbatches, and no weight has a gradient.
"""
