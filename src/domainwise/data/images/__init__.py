"""Image files: decoded once, in parallel, kept in a cache."""
