"""Scores rows by a teacher before a training, once: what `sft.loss: kl` learns from.

`teacher` makes the teacher of the config, `run` has it score the rows and writes them.
"""
