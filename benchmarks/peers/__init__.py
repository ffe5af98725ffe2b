"""The parts of benchmarks/export_vs_peers.py."""
