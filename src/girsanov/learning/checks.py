"""The settings of learning, checked before anything is run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from girsanov.inference.cvi_dp import CVIDP
from girsanov.inference.method import Method
from girsanov.learning.optimise import check_optimiser
from girsanov.learning.parameters import Parameter, Spec, constrain, free_part, leaves_by_path
from girsanov.model.model import Model
from girsanov.result.fit import Fit

_FAR = 4.0  # in free coordinates
OBJECTIVES = ("modified", "standard", "profile")


def check_objective(objective: str | None, method: Method, optimiser: Any) -> str:
    check_optimiser(optimiser)
    by_sites = isinstance(method, CVIDP)
    if by_sites and method.time != "discrete":
        raise ValueError("learning works in discrete time: leave time='discrete', and infer the fitted model at will")
    objective = objective or ("modified" if by_sites else "standard")
    if objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {objective!r}; choose one of {list(OBJECTIVES)}")
    if objective == "modified" and not by_sites:
        raise ValueError("objective='modified' needs the sites of CVIDP; with VDP take 'standard' or 'profile'")
    if objective == "profile" and optimiser != "lbfgs":
        raise ValueError("objective='profile' is maximised by L-BFGS: leave optimiser='lbfgs'")
    return objective


def check_learnable(spec: Spec, method: Method) -> None:
    if not isinstance(method, CVIDP) and any(p.path.split(".")[0] == "diffusion" for p in spec):
        raise ValueError("VDP cannot learn the diffusion, which its q shares with the model: use method=gv.CVIDP()")


def check_priors(spec: Spec, priors: Mapping[str, Any] | None) -> dict:
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
    """A prior has to cover its parameter's range: numpyro's densities go on as they are outside their support."""
    for free in (-_FAR, 0.0, _FAR):
        value = free_part(p, constrain(p, np.full(p.size, free)))
        if not np.all(prior.support(value)):
            raise ValueError(
                f"the prior of {p.path!r} covers {prior.support!r} but its constraint {p.kind!r} allows "
                f"{np.asarray(value).ravel()[0]:.4g}; set its range, e.g. constraints={{{p.path!r}: 'positive'}}"
            )


def check_resume(spec: Spec, resume: Fit | None, model: Model) -> None:
    """That the fit to go on from learnt these parameters of this model: its frozen parts must be those given."""
    paths = tuple(p.path for p in spec)
    if resume is None:
        return
    if resume.trainable != paths:
        raise ValueError(
            f"resume= learnt {', '.join(resume.trainable)}, but trainable stands for {', '.join(paths)}; to learn "
            "others, start anew from the fitted model: gv.learn(fit.model, ...)"
        )
    given, learnt = leaves_by_path(model), leaves_by_path(resume.model)
    for path in [*given, *(p for p in learnt if p not in given)]:
        old, new = learnt.get(path), given.get(path)
        fits = old is not None and new is not None and np.shape(old) == np.shape(new)
        if not fits or (path not in paths and not np.array_equal(np.asarray(old), np.asarray(new))):
            raise ValueError(
                f"resume= goes on from the fit's own parameters, but {path} is {_shown(new)} in the model given "
                f"and {_shown(old)} in the fit: give the model that was fitted, or start anew without resume="
            )


def _shown(value: Any) -> str:
    return "absent" if value is None else np.array2string(np.asarray(value), precision=6, threshold=6)
