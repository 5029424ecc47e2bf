"""Gaussian Markov chains and linear SDEs, as functions of arrays.

A chain is given either by its natural parameters (`natural.NaturalChain`) or by its moments (`moments.Moments`);
`smoother` computes the second from the first. Time is the last axis of every array, unless a module says otherwise.
Nothing in this folder knows about drifts, likelihoods or data.
"""
