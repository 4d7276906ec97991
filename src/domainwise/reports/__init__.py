"""What a person sees: tables and pictures."""
