"""The engine: `train` is the loop, `session` one training in memory, `evaluation` its scores, `recorder` its files."""
