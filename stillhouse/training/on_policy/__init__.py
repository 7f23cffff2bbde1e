"""On-policy distillation: the student samples, the teacher scores every sampled token.

`trajectories` is what was sampled and `scored` what is made of it to be trained on. On the way are `sampling`,
`teachers`, `rewards` and `loss`; `batches` brings them together for one batch of rollouts, `watching` shows what came
of it, `method` is what the trainer sees, and `load` puts all of it together from the config. `masks` serves
several of them.
"""
