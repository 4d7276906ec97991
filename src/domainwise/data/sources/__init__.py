"""One file per family of datasets, and how their files are found, fetched and unpacked."""
