"""Results for people: the paper's comparison, figures, the HTML page."""
