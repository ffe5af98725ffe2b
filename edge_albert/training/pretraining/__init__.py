"""From raw text to a checkpoint: corpus, shards, masked examples, the losses, a loop that resumes to the last bit."""
