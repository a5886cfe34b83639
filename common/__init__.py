"""Lowest layer, used by all packages: errors, text for a terminal, files, tables, options, preprocessing. No torch."""
