"""On-policy distillation: the student samples, the teacher scores every sampled token."""
