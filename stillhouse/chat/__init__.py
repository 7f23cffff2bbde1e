"""Between messages and tokens: model refs, tokenizers, chat templates, and what a completion says."""
