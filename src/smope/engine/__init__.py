"""One training loop, evaluation, resume, checkpoints, records and cost: everything between a config and its record."""
