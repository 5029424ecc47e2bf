"""Models stated as equations in text: a parser that allows arithmetic only, and what a file of equations says.

`expression` parses and evaluates, `algebra` splits expressions into what a model needs, `statement` reads the whole
description of a model, `parts` makes its drift, noise and observations, and `latex` writes it for a page.
"""

from girsanov.model.equations.expression import EquationError
from girsanov.model.equations.latex import latex
from girsanov.model.equations.parts import Equations, parts
from girsanov.model.equations.statement import Statement, read_source, read_statement, starts

__all__ = ["EquationError", "Equations", "Statement", "latex", "parts", "read_source", "read_statement", "starts"]
