"""What answers are judged by: GLUE's metrics, SQuAD's EM and F1, F1 of entities."""
