"""Parameters: which of a model's arrays are free, and the bound's maximum over them.

`learn` is the verb. `parameters` names and constrains what is free, `objectives` has the bound as a function of it,
`curvature` the standard errors.
"""
