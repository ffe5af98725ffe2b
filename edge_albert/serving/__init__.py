"""A bundle behind HTTP: what is asked, the queue before the one model, the figures, and the routes."""
