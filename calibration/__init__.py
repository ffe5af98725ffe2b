"""What the numbers survive: a float reference, and how far an exported file is from it."""
