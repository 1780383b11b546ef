"""Reports: a run, several runs or a search as one HTML page that works offline."""
