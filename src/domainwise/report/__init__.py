"""Results for people: the paper's comparison, figures, the HTML page."""

from domainwise.core import callable_packages

callable_packages.call(__name__, "page.write", "report")
