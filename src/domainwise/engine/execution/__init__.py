"""How a step runs: eager, captured, compiled, on several threads or ranks."""
