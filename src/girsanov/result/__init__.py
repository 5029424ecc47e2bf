"""What a user gets: `infer`, the posterior it returns, diagnosis, and files.

`posterior.Posterior` is the public type. `saving` and `loading` write and read it.
"""
