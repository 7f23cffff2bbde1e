"""The model being trained: which of its parameters, in which type, with which memory."""
