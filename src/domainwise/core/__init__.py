"""What every room stands on: errors, files, locks, registries, plugins, logs, seeds, provenance. No torch."""
