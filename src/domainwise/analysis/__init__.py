"""Looking inside: penalties, the paper's theory."""
