"""The PyTorch core. Here: what all kinds of training share; each kind has a package."""
