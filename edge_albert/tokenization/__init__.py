"""How a text becomes pieces of a vocabulary, and where each lies in it; edge_albert/tokenizer.py is the front door."""
