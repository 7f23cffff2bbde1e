"""The treatment of every HTTP answer before anything else sees it: it is bounded, and keys are taken out of it."""
