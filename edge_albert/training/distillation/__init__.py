"""A small model that answers as a larger one does: teachers, what is learnt of them, the loop."""
