"""The engine: one loop of steps, evaluations and checkpoints."""
