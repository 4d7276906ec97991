"""What the paper says, as data: its search spaces."""
