"""`python -m domainwise`."""

from domainwise.cli import main

if __name__ == "__main__":
    main()
