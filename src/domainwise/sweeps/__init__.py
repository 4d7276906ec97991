"""Many runs: planned, then executed side by side."""
