"""Checks of the settings of `gv.learn`, made before anything is run."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from girsanov._core.precision import to_numpy
from girsanov.inference.cvi_dp import CVIDP
from girsanov.inference.method import Method
from girsanov.learning.optimise import check_optimiser
from girsanov.learning.parameters import Parameter, Spec, constrain, free_part
from girsanov.model.model import Model, check_inputs
from girsanov.model.named import leaves_by_path, replaced
from girsanov.model.simulate import check_draws
from girsanov.result.fit import Fit

_FAR = 4.0  # a prior's support is checked at −_FAR, 0 and _FAR in the free coordinates of its parameter
BEYOND = ("exact", "particles")  # objectives that go on from the bound's maximum to that of the evidence
OBJECTIVES = ("modified", "standard", "profile", *BEYOND)


def check_beyond(objective: str | None, model: Any, series: Any, method: Method, key: Any) -> str | None:
    """Return the objective if it is one of the evidence itself, else None; raise a ValueError where it cannot be."""
    if objective not in BEYOND:
        return None
    check_inputs(model, series)
    if model.covariates is not None:
        raise ValueError(
            f"objective={objective!r} does not take a model with covariates: learn with objective='profile', or give "
            "the model of this series, model.given(series.covariates)"
        )
    if objective == "exact" and model.dim != 1:
        raise ValueError(
            f"objective='exact' needs a scalar state, and that of this model has dimension {model.dim}: use "
            "objective='particles' with a key="
        )
    if not isinstance(method, CVIDP) or method.time == "continuous":
        why = " (singular noise is always in continuous time)" if model.latent.noise.is_singular else ""
        raise ValueError(
            f"objective={objective!r} is for the Euler–Maruyama model on the grid and starts from CVI-DP in discrete "
            f"time, not from {_named(method)}{why}: leave method= out and take a small dt, or keep objective='profile'"
        )
    if objective == "particles":
        if key is None:
            raise ValueError("objective='particles' draws paths and needs a key=, e.g. key=jax.random.key(0)")
        check_draws(key)
    return objective


def check_objective(objective: str | None, method: Method, optimiser: Any) -> str:
    """Return the objective, or the default of the method; raise a ValueError where the settings exclude each other."""
    check_optimiser(optimiser)
    by_sites = isinstance(method, CVIDP)
    if by_sites and method.time == "continuous":
        if objective not in (None, "profile"):
            raise ValueError(
                f"objective={objective!r} is for discrete time; in continuous time, and with singular noise, learning "
                "maximises the profile of the bound: leave objective out"
            )
        objective = "profile"
    objective = objective or ("modified" if by_sites else "standard")
    if objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {objective!r}; choose one of {list(OBJECTIVES)}")
    if objective == "modified" and not by_sites:
        raise ValueError("objective='modified' needs the sites of CVIDP; with VDP use 'standard' or 'profile'")
    if objective == "profile" and optimiser != "lbfgs":
        raise ValueError("objective='profile' is maximised by L-BFGS only: leave optimiser='lbfgs'")
    return objective


def _named(method: Method) -> str:
    return f"{type(method).__name__}(time='continuous')" if isinstance(method, CVIDP) else f"{type(method).__name__}()"


def check_learnable(spec: Spec, method: Method) -> None:
    """Raise a ValueError if the method cannot learn one of the parameters."""
    if not isinstance(method, CVIDP) and any(p.path.startswith("diffusion") for p in spec):
        raise ValueError(
            "VDP cannot learn the diffusion, because its q has the diffusion of the model: use method=gv.CVIDP(), or "
            "leave the diffusion out of trainable"
        )


def stated_priors(spec: Spec, model: Model) -> dict[str, Any]:
    """Return the priors that the equations of a model state for these parameters; none for another model."""
    stated = {} if model.equations is None else model.equations.priors
    return {p.path: stated[p.path] for p in spec if p.path in stated}


def check_priors(spec: Spec, priors: Mapping[str, Any] | None) -> dict:
    """Return the priors as a dictionary; raise a ValueError if one does not fit its parameter."""
    priors = dict(priors or {})
    paths = [p.path for p in spec]
    for path, prior in priors.items():
        if path not in paths:
            raise ValueError(f"there is no trainable parameter {path!r} for a prior; there are {', '.join(paths)}")
        if not hasattr(prior, "log_prob"):
            raise ValueError(f"the prior of {path!r} must be a numpyro distribution, got {prior!r}")
        _check_support(spec[paths.index(path)], prior)
    return priors


def _check_support(p: Parameter, prior: Any) -> None:
    """Raise a ValueError unless the prior covers the range of its parameter.

    Outside their support, the densities of numpyro return values without a meaning.
    """
    for free in (-_FAR, 0.0, _FAR):
        value = free_part(p, constrain(p, np.full(p.size, free)))
        if not np.all(prior.support(value)):
            raise ValueError(
                f"the prior of {p.path!r} covers {prior.support!r} but its constraint {p.kind!r} allows "
                f"{np.asarray(value).ravel()[0]:.4g}; set its range, e.g. constraints={{{p.path!r}: 'positive'}}"
            )


def check_resume(spec: Spec, resume: Fit | None, model: Model) -> Model:
    """Return the model with the parameters that the fit in `resume=` learnt, or without such a fit as it is.

    A file has only the name of a drift of the user's own, so that the values are those of the fit's history.

    Raises:
        ValueError: unless the fit learnt these parameters of this model. The parameters that are not learnt must have
            the same values in the model given and in the fit.
    """
    paths = tuple(p.path for p in spec)
    if resume is None:
        return model
    if resume.trainable != paths:
        raise ValueError(
            f"resume= learnt {', '.join(resume.trainable)}, but trainable stands for {', '.join(paths)}; to learn "
            "other parameters, start again from the fitted model: gv.learn(fit.model, ...)"
        )
    given, learnt = leaves_by_path(model), leaves_by_path(resume.model)
    for path in [*given, *(p for p in learnt if p not in given)]:
        old, new = learnt.get(path), given.get(path)
        fits = old is not None and new is not None and np.shape(old) == np.shape(new)
        if not fits or (path not in paths and not np.array_equal(np.asarray(old), np.asarray(new))):
            raise ValueError(
                f"resume= continues from the parameters of the fit, but {path} is {_shown(new)} in the model given "
                f"and {_shown(old)} in the fit: give the model that was fitted, or start again without resume="
            )
    return to_numpy(replaced(resume.model, resume.parameters))


def check_checkpoint(path: str | Path | None) -> Path | None:
    """Return the path of a checkpoint; raise a ValueError where no file can be written."""
    if path is None:
        return None
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"checkpoint must be a file in a folder that exists, got {str(path)!r}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"checkpoint cannot be written: there is no permission to write in {str(path.parent)!r}")
    return path


def _shown(value: Any) -> str:
    return "absent" if value is None else np.array2string(np.asarray(value), precision=6, threshold=6)
