"""From a source to a dataset: tables as streams in bounded memory, here or on Ray."""
