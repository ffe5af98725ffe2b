"""The steps of benchmarks/real_results.py, one file each."""
