"""A cluster of network namespaces on one machine, and what the drills do with it."""
