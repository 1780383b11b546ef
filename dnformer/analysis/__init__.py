"""What a trained model does with a graph: its attention, and measures of it."""
