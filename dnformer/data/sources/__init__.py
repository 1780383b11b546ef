"""Graphs to ingest that are no tables: raw files of PyG and OGB, PyG `Data`, generated ones."""
