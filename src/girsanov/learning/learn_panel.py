"""`learn` for a panel: parameters that all series share, and parameters of single series."""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from girsanov._core.checks import check_positive, check_whole
from girsanov._core.precision import to_numpy
from girsanov._core.progress import reporter
from girsanov.data.panel import Panel
from girsanov.inference.boundary import checked_boundary
from girsanov.inference.conditioning import Loss
from girsanov.inference.cvi_dp import CVIDP
from girsanov.inference.loop import Run
from girsanov.inference.objective import Posed
from girsanov.inference.quadrature_check import checked_quadrature
from girsanov.learning.checks import check_learnable, check_priors, stated_priors
from girsanov.learning.curvature import laplace
from girsanov.learning.newton import Point, Summit, newton
from girsanov.learning.panel_learner import PanelLearner
from girsanov.learning.panel_problem import PanelProblem
from girsanov.learning.panel_step import Step
from girsanov.learning.parameters import Spec, entries, insert, make_spec, split, to_vector
from girsanov.learning.random_learner import RandomLearner
from girsanov.learning.slopes import make_slopes
from girsanov.learning.verdict import MESSAGES, curvature_trouble
from girsanov.model.model import Model
from girsanov.result.bad_start import explain_bad_start
from girsanov.result.infer_panel import lay_out_panel
from girsanov.result.making import trimmed
from girsanov.result.panel_fit import PanelFit
from girsanov.result.panel_posterior import Outcome, PanelPosterior

_FLAT = 1e-4  # below this curvature a series does not tell its own parameter: nats per squared unit of a coordinate


class Specs(NamedTuple):
    """The parameters of a fit: those that all series share, and those of single series, free or with a normal law."""

    shared: Spec
    individual: Spec
    random: Spec

    @property
    def own(self) -> Spec:
        """The parameters of single series."""
        return self.individual or self.random


def learn_panel(
    model: Model,
    panel: Panel,
    dt: float | None,
    span: Any,
    *,
    trainable: Sequence[str] | str | None,
    individual: Sequence[str] | str,
    random: Sequence[str] | str,
    effects: Mapping[str, Any] | None,
    method: Any,
    grid: Any,
    tolerance: float,
    max_iterations: int,
    constraints: Mapping[str, Any] | None,
    priors: Mapping[str, Any] | None,
    standard_errors: bool,
    progress: bool,
) -> PanelFit:
    """Maximise the sum of the bounds of all series; see `learn`."""
    begun = time.perf_counter()
    check_whole(max_iterations=max_iterations)
    check_positive(tolerance=tolerance)
    if not isinstance(method, CVIDP):
        raise ValueError("the parameters of a panel are learnt with method=gv.CVIDP(...); VDP is for a single series")
    datas = lay_out_panel(model, panel, dt, span, grid)
    specs = make_specs(model, trainable, individual, random, constraints)
    priors = check_priors(specs.shared, stated_priors(specs.shared, model) if priors is None else priors)
    for spec in specs:
        check_learnable(spec, method)
    slopes = make_slopes(specs.random, effects, panel)
    problem = PanelProblem(specs.shared + specs.own, method, model, method.rule(model.dim), datas)
    with reporter(progress) as say:
        theta = to_vector(specs.shared, model) if specs.shared else np.zeros(0)
        phi = to_vector(specs.own, model) if specs.own else np.zeros(0)
        if specs.random:
            learner: Any = RandomLearner(problem, specs.shared, specs.random, method, priors, begun, say, slopes)
            theta, step = learner.first_law(theta, phi)
        else:
            learner = PanelLearner(problem, specs.shared, method, priors, begun, say)
            step = learner.first(theta, np.tile(phi, (len(panel), 1)))
        _check_start(learner, theta, step, panel)
        summit = _ascend(learner, theta, step, tolerance, max_iterations)
        fit = _finish(learner, specs, summit, model, panel, standard_errors)
    if fit.status not in ("converged", "max_iterations", "flat"):
        warnings.warn(f"learn has not converged ({fit.status}): {fit.message}", stacklevel=4)
    return fit


def make_specs(
    model: Model, trainable: Any, individual: Any, random: Any, constraints: Mapping[str, Any] | None
) -> Specs:
    """Return the parameters that the names stand for; raise a ValueError where a parameter has two roles."""
    if len(individual) and len(random):
        raise ValueError(
            "individual= and random= cannot be given together: parameters of single series are all free, or all have a "
            "normal law"
        )
    role = "individual" if len(individual) else "random"
    free, drawn = (() if len(n) == 0 else make_spec(model, n, constraints) for n in (individual, random))
    if trainable is None:  # what the equations of the model leave free, and is not one of single series
        own_paths = {p.path for p in free or drawn}
        trainable = [] if model.equations is None else [n for n in model.equations.free if n not in own_paths]
    shared = () if len(trainable) == 0 else make_spec(model, trainable, constraints)
    own = free or drawn
    both = {p.path for p in shared} & {p.path for p in own}
    if both:
        raise ValueError(
            f"{sorted(both)[0]!r} is named both in trainable= and in {role}=: a parameter is shared by all "
            "series, or free for each"
        )
    if not shared and not own:
        raise ValueError("name at least one parameter in trainable=, individual= or random=, e.g. trainable=['drift']")
    return Specs(shared, free, drawn)


def _check_start(learner: PanelLearner, theta: np.ndarray, step: Step, panel: Panel) -> None:
    """Raise a ValueError that names a series whose bound is not finite at the start."""
    bad = np.flatnonzero(~np.isfinite(step.peaks.value))
    if len(bad):
        i, name = int(bad[0]), panel.names[int(bad[0])]
        try:
            explain_bad_start(learner.problem.posed(i, np.concatenate([theta[: learner.size], step.peaks.phi[i]])))
        except ValueError as error:
            raise ValueError(f"series {name!r}: {error}") from None


def _ascend(learner: PanelLearner, theta: np.ndarray, step: Step, tolerance: float, most: int) -> Summit:
    """Climb the profile of the shared parameters from the start."""
    learner.record(theta, step.elbo)
    value, grad = step.elbo + learner.prior(theta), learner.envelope(theta, step)[1]
    point = Point(theta, step, value, grad)
    if len(theta) == 0:
        return Summit(point, np.zeros((0, 0)), "converged" if step.peaks.done.all() else "stalled")
    summit = newton(learner, point, tolerance=tolerance, max_iterations=most)
    stuck = summit.status == "converged" and not _step(summit).peaks.done.all()
    return summit._replace(status="stalled") if stuck else summit


def _step(summit: Summit) -> Step:
    step: Any = summit.point.result
    return step


def _finish(
    learner: PanelLearner, specs: Specs, summit: Summit, model: Model, panel: Panel, standard_errors: bool
) -> PanelFit:
    step, lam = _step(summit), summit.point.theta
    theta = lam[: learner.size]
    B = step.peaks.B if specs.random else learner.curvatures(theta, step)
    status, message = _verdict(learner, specs, summit, B, panel)
    # The model of the population has the means of the random effects.
    values = lam[: learner.size + sum(p.size for p in specs.random)]
    fitted = to_numpy(insert(specs.shared + specs.random, values, model))
    posts = _posteriors(learner, fitted, theta, step, panel)
    if status == "converged" and not posts.converged:
        name = next(name for name, status in posts.statuses.items() if status != "converged")
        status = posts.statuses[name]
        message = f"the parameters have converged, but the posterior of series {name!r} has not: {posts.messages[name]}"
    errors = covariance = None
    if standard_errors and learner.spec and status != "flat":
        if np.isfinite(summit.precision).all() and np.linalg.eigvalsh(summit.precision)[0] > 0.0:
            units = learner.units
            found = laplace(learner.spec, lam * units, summit.precision / np.outer(units, units))
            errors = dict(zip(entries(learner.spec), found.errors.tolist(), strict=True))
            covariance = found.covariance
        else:
            message += "; no standard errors: the bound does not curve downwards in every direction"
    own, own_errors = individual_values(specs.own, step.peaks.phi, B)
    effects = sum(p.size for p in specs.random)
    variance = np.exp(lam[learner.size + effects :][:effects])
    return PanelFit(
        fitted,
        own,
        own_errors,
        posts,
        learner.history(),
        tuple(p.path for p in specs.shared),
        status,
        message,
        errors,
        covariance,
        tuple(p.path for p in specs.random),
        _shrinkage(specs.random, B, variance),
    )


def _verdict(learner: PanelLearner, specs: Specs, summit: Summit, B: np.ndarray, panel: Panel) -> tuple[str, str]:
    """Return the status and the message of the place where the ascent ended."""
    if summit.status != "converged":
        return summit.status, MESSAGES[summit.status]
    trouble = curvature_trouble(learner, summit) if learner.spec else None
    if trouble is not None:
        return trouble
    if specs.individual:
        size = np.maximum(1.0, np.abs(_step(summit).peaks.phi))
        values, vectors = np.linalg.eigh(B * size[:, :, None] * size[:, None, :])
        flat = np.flatnonzero(values[:, 0] < _FLAT)
        if len(flat):
            i = int(flat[0])
            along = entries(specs.individual)[int(np.argmax(np.abs(vectors[i, :, 0])))]
            return "flat", (
                f"the data of {len(flat)} of {len(panel)} series do not tell their own {along}, the first is "
                f"{panel.names[i]!r}: share it, or fix it"
            )
    return "converged", MESSAGES["converged"]


def _shrinkage(random: Spec, B: np.ndarray, variance: np.ndarray) -> dict[str, np.ndarray]:
    """Return (B⁻¹)_kk / τ_k² of every series by path, (S, k): the share of the law in what is known of an effect."""
    if not random:
        return {}
    left = np.full(B.shape[:2], np.nan)
    for i, precision in enumerate(B):
        if np.isfinite(precision).all() and np.linalg.eigvalsh(precision)[0] > 0.0:
            left[i] = np.diagonal(np.linalg.inv(precision)) / variance
    ends = np.cumsum([0, *(p.size for p in random)])
    return {p.path: left[:, a:b] for p, a, b in zip(random, ends, ends[1:], strict=False)}


def individual_values(
    spec: Spec, phi: np.ndarray, B: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the values of the parameters of single series by path, stacked, and their standard errors."""
    if not spec:
        return {}, {}
    values = {k: np.asarray(v) for k, v in jax.vmap(lambda f: split(spec, f))(phi).items()}
    errors = np.full(phi.shape, np.nan)
    for i, precision in enumerate(B):
        if np.isfinite(precision).all() and np.linalg.eigvalsh(precision)[0] > 0.0:
            errors[i] = laplace(spec, phi[i], precision).errors
    parts, start = {}, 0
    for p in spec:
        part = errors[:, start : start + p.size]
        whole = part.shape[1] == int(np.prod(p.shape))
        parts[p.path] = part.reshape(-1, *p.shape) if whole else part
        start += p.size
    return values, parts


def _posteriors(learner: PanelLearner, fitted: Model, theta: np.ndarray, step: Step, panel: Panel) -> PanelPosterior:
    """Return the posteriors of all series at their parameters."""
    begun, method, names = time.perf_counter(), learner.method, panel.names
    outcomes: dict[str, Outcome] = {}

    def keep(i: int, problem: Posed, run: Run, loss: Loss | None) -> None:
        if loss is not None and loss.asks_for_care(run.status):
            run, _ = method.solve(problem)
        run = checked_boundary(problem, checked_quadrature(problem, run))
        data = learner.problem.datas[i]
        run = trimmed(run, len(data.times), len(data.node))._replace(root=None)
        outcomes[names[i]] = Outcome(Posed(problem.stated, data, problem.rule), run, (), panel[names[i]])

    learner.problem.evaluate(np.column_stack([np.tile(theta, (len(panel), 1)), step.peaks.phi]), keep=keep)
    return PanelPosterior(fitted, panel, {name: outcomes[name] for name in names}, seconds=time.perf_counter() - begun)
