"""What a graph is and where it lives: sources, Parquet cache, node-local store, splits."""
