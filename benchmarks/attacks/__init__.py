"""What `attack.py` does to the program: kills, bad invocations, damaged files, hostile names on the page."""
