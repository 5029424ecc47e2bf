"""Priors in text, such as "lognormal(0, 1)": a known name and numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

from girsanov.model.equations.expression import EquationError, hint

_FORMS = {
    "normal": "normal(mean, sd)",
    "lognormal": "lognormal(mean of the logarithm, its sd)",
    "halfnormal": "halfnormal(sd)",
    "gamma": "gamma(shape, rate)",
    "beta": "beta(a, b)",
    "uniform": "uniform(low, high)",
    "exponential": "exponential(rate)",
}


class Prior(NamedTuple):
    """A prior by its name and its numbers."""

    name: str
    numbers: tuple[float, ...]

    def distribution(self) -> Any:
        """Return the numpyro distribution."""
        import numpyro.distributions as dist

        makers: dict[str, Callable] = {
            "normal": dist.Normal,
            "lognormal": dist.LogNormal,
            "halfnormal": dist.HalfNormal,
            "gamma": dist.Gamma,
            "beta": dist.Beta,
            "uniform": dist.Uniform,
            "exponential": dist.Exponential,
        }
        return makers[self.name](*self.numbers)


def parse_prior(text: Any, where: str) -> Prior:
    """Parse a prior; raise an EquationError that names the forms there are."""
    form = str(text).strip()
    name, bracket, rest = form.partition("(")
    name = name.strip()
    if not isinstance(text, str) or not bracket or not rest.endswith(")"):
        raise EquationError(f"{where} must be text such as 'lognormal(0, 1)', got {text!r}")
    if name not in _FORMS:
        raise EquationError(
            f"{where}: unknown prior {name!r}{hint(name, _FORMS)}; there are {', '.join(_FORMS.values())}"
        )
    try:
        numbers = tuple(float(part) for part in rest[:-1].split(","))
    except ValueError:
        raise EquationError(f"{where}: {form!r} is not of the form {_FORMS[name]} with numbers") from None
    if len(numbers) != _FORMS[name].count(",") + 1:
        raise EquationError(f"{where}: {form!r} is not of the form {_FORMS[name]}")
    positive = numbers if name in ("halfnormal", "gamma", "beta", "exponential") else numbers[1:]
    wrong = not numbers[0] < numbers[1] if name == "uniform" else not all(v > 0.0 for v in positive)
    if wrong or not all(abs(v) < float("inf") for v in numbers):
        raise EquationError(f"{where}: {form!r} has a number that is not allowed; the form is {_FORMS[name]}")
    return Prior(name, numbers)
