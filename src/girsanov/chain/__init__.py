"""Gaussian Markov chains and linear SDEs: arrays in, arrays out.

A chain has two forms that are types of their own, `natural.NaturalChain` and `moments.Moments`; `smoother` leads from
the first to the second. Time is the last axis. Nothing here knows of drifts, likelihoods or data.
"""
