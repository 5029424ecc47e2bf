"""The pages of the API: every public name, in groups, as Sphinx's autodoc shows them."""

import inspect

import girsanov as gv
from girsanov import baselines, diffusions, evaluation, likelihoods
from girsanov.baselines.kernels import Kernel
from girsanov.inference.method import Method
from girsanov.model.drifts import DRIFTS, Drift
from girsanov.model.quadrature import Cubature, GaussHermite, MonteCarlo

BASES = (Drift, likelihoods.Likelihood, likelihoods.Elementwise, diffusions.StateDiffusion, Method)

# Title, introduction, names. A public name that stands nowhere comes to a page of its own kind, "more".
MAIN = "girsanov"
GROUPS: dict[str, tuple[str, str, list[str]]] = {
    "verbs": (
        "What you call",
        "Data and model go in, an answer comes out.",
        ["infer", "learn", "filter", "compare", "sample_parameters", "simulate", "load"],
    ),
    "data": ("Data", "Series of one or many, with their times.", ["TimeSeries", "Panel", "Inputs"]),
    "models": ("Models", "What a model is made of.", ["Model", "GaussianState", "matern", "start_emission"]),
    "drifts": ("Drifts", "The drifts that are there. Any function f(x, t) is one too.", [d.__name__ for d in DRIFTS]),
    "results": (
        "Answers",
        "What `infer`, `learn` and `solve` return.",
        ["Posterior", "PanelPosterior", "Fit", "PanelFit", "Filtered", "Status"],
    ),
    "methods": (
        "Methods and quadrature",
        "Settings of inference.",
        ["CVIDP", "VDP", "GaussHermite", "Cubature", "MonteCarlo"],
    ),
    "inside": ("Inside JAX", "Inference in your own programs of JAX.", ["prepare", "solve", "bound", "Solution"]),
}
PARTS = {
    "likelihoods": ("Likelihoods", "Observation models p(y | z).", likelihoods),
    "diffusions": ("Noise that depends on the state", "Settings for `gv.Model(diffusion=...)`.", diffusions),
    "baselines": ("Baselines", "Other ways to the posterior.", baselines),
    "evaluation": ("Many fits", "Folds, scores and sweeps.", evaluation),
}
# What public calls return, and what a class of one's own derives from.
MORE = {
    "results": [
        "girsanov.result.posterior.History",
        "girsanov.result.residuals.Residuals",
        "girsanov.model.estimate.Marginals",
        "girsanov.result.diagnosis.Diagnosis",
        "girsanov.result.refined.Refined",
        "girsanov.result.comparison.Comparison",
        "girsanov.result.profile.Profile",
        "girsanov.model.simulate.Simulation",
    ],
    "drifts": ["girsanov.model.drifts.base.Drift"],
    "methods": ["girsanov.inference.method.Method"],
    "baselines": [
        "girsanov.model.estimate.PathEstimate",
        "girsanov.baselines.gp.GPEstimate",
        "girsanov.baselines.exact.ExactPosterior",
        "girsanov.baselines.particle_smoother.ParticlePosterior",
    ],
}
_FOREIGN = "object, Module, str, int, tuple, Mapping"  # their members are not shown where ours inherit from them


def with_members(thing: type) -> bool:
    """Return whether the members of a class are for users: those of a setting are called by the library only.

    Of drifts, likelihoods, noises, methods, rules and kernels the base class shows what one of your own has to offer.
    """
    return thing in BASES or not issubclass(thing, (*BASES, GaussHermite, Cubature, MonteCarlo, Kernel))


def entry(path: str, thing: object) -> str:
    """Return the directive for one name."""
    if not inspect.isclass(thing):
        return f".. autofunction:: {path}\n"
    members = f"   :members:\n   :exclude-members: of\n   :inherited-members: {_FOREIGN}\n"
    return f".. autoclass:: {path}\n" + (members if with_members(thing) else "")


def page(title: str, introduction: str, entries: list[str]) -> str:
    """Return a page in reStructuredText."""
    return "\n".join([title, "=" * len(title), "", introduction, "", *entries])


def resolve(path: str) -> object:
    """Return what a dotted path names."""
    import importlib

    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def groups() -> dict[str, tuple[str, str, list[str]]]:
    """Return the groups, with one more for public names that stand in none."""
    placed = {name for _, _, names in GROUPS.values() for name in names} | set(PARTS)
    left = [name for name in gv.__all__ if name not in placed]
    return GROUPS | ({"more": ("More", "Other public names.", left)} if left else {})


def pages() -> dict[str, str]:
    """Return the text of every page of the API by its name."""
    out = {}
    for key, (title, introduction, names) in groups().items():
        entries = [entry(f"{MAIN}.{name}", getattr(gv, name)) for name in names]
        out[key] = page(title, introduction, entries + [entry(p, resolve(p)) for p in dict.fromkeys(MORE.get(key, []))])
    for key, (title, introduction, module) in PARTS.items():
        entries = [entry(f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__]
        out[key] = page(title, introduction, entries + [entry(p, resolve(p)) for p in dict.fromkeys(MORE.get(key, []))])
    index = "\n".join(f"   {key}" for key in out)
    out["index"] = page("API", "Every public name.", [f".. toctree::\n   :maxdepth: 2\n\n{index}\n"])
    return out
