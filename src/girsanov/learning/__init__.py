"""Learning: the maximum of the evidence bound over parameters of a model.

`learn` has the function `gv.learn`. `parameters` names and constrains the trainable parameters, `objectives` has the
bound as a function of them, and `curvature` computes standard errors.
"""
