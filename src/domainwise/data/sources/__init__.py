"""One file per family of datasets, and how their files are found, downloaded and unpacked.

Importing these modules registers the datasets and must not import torch: `domainwise list` and completion depend on it.
Loaders import torch and Environments when they are called.
"""
