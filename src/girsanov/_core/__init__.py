"""What every other room stands on: float64, compiler options, checks of numbers, array types, progress, Ctrl-C.

`precision` is the one place where 64-bit types are decided, and `compile` the one place of compiler options. Nothing
here knows of chains, models or data.
"""
