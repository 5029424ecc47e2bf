"""Variational inference: the evidence bound of a Gaussian q, its gradient, and the algorithms that maximise it.

`objective` defines the problem that a run solves and the bound that it maximises. `loop` drives every algorithm; each
algorithm has a module of its own. Nothing here prints or warns; what a user sees is made in `girsanov.result`.
"""
