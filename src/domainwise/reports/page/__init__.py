"""The page: all results of a folder of runs in one HTML file that needs nothing else."""
