"""How fast the engine is on this machine, beside a plain loop and beside what the machine could do."""
