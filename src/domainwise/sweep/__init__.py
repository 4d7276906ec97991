"""Many runs: planned, then executed side by side."""

from domainwise.core import callable_packages

callable_packages.call(__name__, "launch", "sweep")
