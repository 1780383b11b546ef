"""Out of a trained run: what it says of each node, as tables with the original ids.

`options` is what is asked for, `trained` the run's best model, `selection` and `ids` which nodes,
`computing` how outputs come about, `columns` what they become, `folder` where they go and
`results` how they are read again; `worker` does it all on each worker, `launch` starts them.
"""
