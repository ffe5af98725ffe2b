"""The stages of an export; edge_albert/exporter.py puts them in order."""
