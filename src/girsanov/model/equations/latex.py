"""Equations as LaTeX, for pages and reports."""

from girsanov.model.equations.expression import Expression
from girsanov.model.equations.statement import Statement

_GREEK = {
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi", "pi",
    "rho", "sigma", "tau", "phi", "chi", "psi", "omega",
    "Gamma", "Delta", "Theta", "Lambda", "Sigma", "Phi", "Psi", "Omega",
}  # fmt: skip
_NAMED = {"exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arctan", "min", "max"}
_STRENGTH = {"<": 0, "<=": 0, ">": 0, ">=": 0, "==": 0, "!=": 0, "+": 1, "-": 1, "neg": 2, "*": 3, "/": 5, "^": 4}
_SIGNS = {"<=": r"\le", ">=": r"\ge", "==": "=", "!=": r"\ne"}
_LAWS = {
    "gaussian": r"\mathcal{N}",
    "student_t": "t",
    "censored": r"\mathcal{N}",
    "poisson": r"\mathrm{Poisson}",
    "negative_binomial": r"\mathrm{NegBin}",
    "binomial": r"\mathrm{Binomial}",
    "bernoulli": r"\mathrm{Bernoulli}",
    "gamma": r"\mathrm{Gamma}",
    "lognormal": r"\mathrm{LogNormal}",
    "stochastic_volatility": r"\mathrm{StochVol}",
}


def latex(statement: Statement) -> list[str]:
    """Return the equations as lines of LaTeX: one for every state, and one for every output."""
    lines = []
    for s in statement.states:
        noise = expression(s.noise)
        term = "" if noise == "0" else rf" + {_factor(s.noise)}\,d\beta_{{{name(s.name)}}}"
        lines.append(rf"d{name(s.name)} = {_bracketed(s.drift)}\,dt{term}")
    for o in statement.outputs:
        settings = "".join(
            rf",\; \text{{{key}}} = {expression(v) if isinstance(v, Expression) else f'{v:g}'}"
            for key, v in o.settings.items()
        )
        law = _LAWS.get(str(o.distribution), r"\mathcal{N}")
        lines.append(rf"{name(o.name)} \sim {law}\left({expression(o.measures)}{settings}\right)")
    return lines


def name(text: str) -> str:
    """Return a name as LaTeX: Greek letters as such, what follows the first _ as an index, words upright."""
    head, _, index = text.partition("_")
    if head in _GREEK:
        head = "\\" + head
    elif len(head) > 1:
        head = rf"\mathrm{{{head}}}"
    below = index.replace("_", r"\,")
    return rf"{head}_{{\mathrm{{{below}}}}}" if below else head


def expression(e: Expression) -> str:
    """Return an expression as LaTeX."""
    if e.kind == "number":
        return _number(e.head)
    if e.kind == "name":
        return name(e.head)
    if e.kind == "call":
        return _call(e)
    parts = [expression(a) for a in e.arguments]
    if e.head == "neg":
        return "-" + _within(e.arguments[0], parts[0], _STRENGTH["neg"])
    if e.head == "/":
        return rf"\frac{{{parts[0]}}}{{{parts[1]}}}"
    if e.head == "^":
        base = e.arguments[0]
        simple = (base.kind == "name" and "_" not in base.head) or (base.kind == "number" and base.head >= 0.0)
        left = parts[0] if simple else rf"\left({parts[0]}\right)"
        return rf"{left}^{{{parts[1]}}}"
    strength = _STRENGTH[e.head]
    left = _within(e.arguments[0], parts[0], strength)
    right = _within(e.arguments[1], parts[1], strength + (e.head == "-"))
    sign = {"*": r"\,"}.get(e.head, f" {_SIGNS.get(e.head, e.head)} ")
    if e.head == "*" and e.arguments[1].kind == "number":
        sign = r" \cdot "
    return f"{left}{sign}{right}"


def _within(e: Expression, text: str, strength: int) -> str:
    weaker = e.kind == "operation" and _STRENGTH[e.head] < strength
    return rf"\left({text}\right)" if weaker or (e.kind == "number" and e.head < 0.0) else text


def _bracketed(e: Expression) -> str:
    sum_ = e.kind == "operation" and e.head in ("+", "-", "neg")
    return rf"\left({expression(e)}\right)" if sum_ else expression(e)


_factor = _bracketed


def _call(e: Expression) -> str:
    parts = [expression(a) for a in e.arguments]
    if e.head == "sqrt":
        return rf"\sqrt{{{parts[0]}}}"
    if e.head == "abs":
        return rf"\left|{parts[0]}\right|"
    if e.head == "where":
        return rf"\begin{{cases}}{parts[1]} & \text{{if }} {parts[0]}\\ {parts[2]} & \text{{else}}\end{{cases}}"
    word = "\\" + e.head if e.head in _NAMED else rf"\operatorname{{{e.head}}}"
    return rf"{word}\left({', '.join(parts)}\right)"


def _number(value: float) -> str:
    text = f"{value:.12g}"
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"
