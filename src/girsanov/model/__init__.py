"""What a user states: drift, diffusion, initial state and observation, and what follows from the model alone.

`model` has the public type; drifts and likelihoods are one class each. `path_model` is the model as densities of single
steps, `simulate` draws from it, and `estimate` is what every estimate of its path offers.
"""
