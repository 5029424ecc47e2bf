"""From a model and data to q: the bound, its gradient, and the algorithms that climb it.

`objective` has what a run works on and what it maximises. `loop` drives every algorithm; each has a module of
its own. Nothing here prints, warns or knows what a user sees: that is `girsanov.result`.
"""
