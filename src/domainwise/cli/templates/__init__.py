"""Starting points for one's own parts: `domainwise template algorithm > mine.py`. Each runs as it is."""
