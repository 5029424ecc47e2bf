"""The model that a user states (drift, diffusion, initial state, observation) and what follows from it alone.

The public type is `Model` in `model`. Each drift and each likelihood is a class. `path_model` gives the densities of
single steps, `simulate` draws paths and observations, and `estimate` is the common interface of estimates of a path.
"""
