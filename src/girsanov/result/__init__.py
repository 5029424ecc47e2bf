"""What a user works with: `infer`, the posterior that it returns, the diagnosis of a posterior, fits, and files.

`posterior.Posterior` and `fit.Fit` are the public types. `saving` and `loading` write and read them.
"""
