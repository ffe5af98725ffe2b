"""The parts of benchmarks/early_exit.py."""
