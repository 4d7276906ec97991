"""Used by every other package: errors, files, locks, registries, plugins, logs, seeds, provenance. No torch."""
