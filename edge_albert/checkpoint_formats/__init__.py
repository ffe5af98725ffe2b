"""The ways an ALBERT lies on disk, each read into {canonical name: array}; checkpoint.py is their front door."""
