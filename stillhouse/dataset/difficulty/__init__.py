"""How hard rows are for the student, before it is trained.

nll        how surprised the student is by a row
pass_rate  how often its own answers to the prompt are right
rows       both, as a file beside a shard's candidates
"""
