"""The page: all that a folder of runs tells, in one HTML file that needs nothing else."""

from domainwise.report.page.models import Asking
from domainwise.report.page.write import write_page

__all__ = ["Asking", "write_page"]
