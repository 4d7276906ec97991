"""The page: all that a folder of runs tells, in one HTML file that needs nothing else."""

from domainwise.report.page.write import Options, write_page

__all__ = ["Options", "write_page"]
