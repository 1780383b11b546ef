"""Commands as jobs of a Ray cluster: what is shipped, under which name, and what became of it.

`job` and `package` decide and stage without a cluster, `cluster` reaches one, `jobs` acts on it,
and `head` is what runs there first.
"""
