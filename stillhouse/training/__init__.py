"""Training of a student: one trainer, and a short module for each method that supplies its batches and its loss.

`launch.train` runs a `TrainJob` in a process of its own; everything that needs torch lives in that process.
"""
