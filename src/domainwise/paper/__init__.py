"""What the paper says, as data: its tables, and how it ran them."""
