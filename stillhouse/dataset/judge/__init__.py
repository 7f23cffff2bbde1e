"""What a language model says of trajectories: grades against a rubric, and whether answers are right.

prompts      what the judge is shown
schema       the form of its judgements, and how they are sampled
judgements   from judgements to a row's scores and verdict
"""
