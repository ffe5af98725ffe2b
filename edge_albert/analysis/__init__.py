"""What the paper's ideas buy, measured: the parts of `python -m edge_albert.analyze`."""
