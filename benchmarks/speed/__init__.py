"""The two sides of benchmarks/train_speed.py."""
