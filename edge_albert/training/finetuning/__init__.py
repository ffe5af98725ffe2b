"""One loop for all tasks: how each is read, encoded, answered, scored; early-exit heads."""
