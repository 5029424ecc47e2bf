"""Helpers that every other folder uses: float64, compiler options, checks, array types, extras, progress and Ctrl-C.

Only `precision` switches 64-bit types on, and only `compile` sets options of the compiler. Nothing in this folder knows
about chains, models or data.
"""
