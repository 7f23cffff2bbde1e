"""On-policy distillation: the student samples, the teacher scores every sampled token.

Begin with `algorithms`, a file for each method: what is asked of the teacher, what credit a token gets, which loss.
`batches` makes batches of rollouts with `sampling`, `teachers` and `rewards`: sampled `trajectories` become `scored`
samples. `objective` and `method` are what the trainer sees, `monitoring` is for people, and `load` puts everything
together from the config.
"""
