"""The field's claims about on-policy distillation, tried on models small enough to train from nothing here."""
