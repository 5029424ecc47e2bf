"""Predictive densities of one to three outputs, against integrals that follow the likelihood.

The marginals of the state are the library's own: only the score is judged, log E p(y | Hx) under them, by .01 nats.
"""

import dataclasses
import time
from typing import Any

import numpy as np

from fuzz.cases import NoOracle, Outcome, assignments, attempt, chance, decades, generator, judge
from fuzz.densities import draw
from fuzz.integrals import log_predictive

FAMILY = "scores"
NATS, RELATIVE = 0.01, 1e-4
_OBSERVATIONS, _NODES, _TESTS = 5, 11, 4
_LIKELIHOODS = ("Gaussian", "StudentT", "Poisson", "Bernoulli")


@dataclasses.dataclass(frozen=True)
class Case:
    """A linear model of as many states as outputs, its data, and held-out observations."""

    name: str
    likelihood: str
    numbers: dict[str, Any]
    decay: np.ndarray
    Q: np.ndarray
    m0: np.ndarray
    P0: np.ndarray
    H: np.ndarray
    times: np.ndarray
    y: np.ndarray
    test_times: np.ndarray
    test_y: np.ndarray

    @property
    def shape(self) -> tuple:
        return (self.likelihood, len(self.H))


def generate(seed: int, index: int) -> Case:
    rng = generator(seed, FAMILY, index)
    kind, D = str(rng.choice(_LIKELIHOODS, p=[0.1, 0.3, 0.4, 0.2])), int(rng.integers(1, 4))
    numbers = {
        "Gaussian": {"variance": decades(rng, -4, 1, D)},
        "StudentT": {"scale": decades(rng, -3, 0.5, D), "df": rng.uniform(1.5, 8)},
        "Poisson": {"exposure": decades(rng, 0, 4, D)},
        "Bernoulli": {},
    }[kind]
    G = rng.normal(size=(D, D))
    Q = decades(rng, -2, 0.5) * (G @ G.T / D + 0.2 * np.eye(D))
    decay, P0 = decades(rng, -1, 0.5, D), decades(rng, -1, 0.5) * np.eye(D)
    m0, H = rng.normal(size=D), np.eye(D) if chance(rng, 0.5) else rng.normal(size=(D, D))
    times = np.sort(rng.permutation(9)[:_OBSERVATIONS] + 0.5) * 0.1 * 2.0
    y = draw(rng, kind, numbers, np.broadcast_to(H @ m0, (_OBSERVATIONS, D)))
    test_times = np.sort(rng.uniform(0, 2, _TESTS))
    spread = rng.normal(size=(_TESTS, D)) * rng.choice([0.3, 1.0, 2.0])
    test_y = draw(rng, kind, numbers, H @ m0 + spread)
    return Case(
        f"{FAMILY}-{seed}-{index}", kind, numbers, decay, 0.5 * (Q + Q.T), m0, P0, H, times, y, test_times, test_y
    )


def call(case: Case) -> tuple[np.ndarray, Any]:
    """The scores, and the marginals under which they are taken."""
    import girsanov as gv

    model = gv.Model(
        gv.OrnsteinUhlenbeck(case.decay),
        diffusion=case.Q,
        initial=gv.GaussianState(case.m0, case.P0),
        likelihood=getattr(gv.likelihoods, case.likelihood)(**case.numbers),
        emission=case.H,
    )
    series = gv.TimeSeries(case.times, case.y)
    post = gv.infer(model, series, dt=2.0 / (_NODES - 1), span=(0.0, 2.0), progress=False)
    return post.nlpd_values(gv.TimeSeries(case.test_times, case.test_y)), post.marginals(case.test_times)


def oracle(case: Case, marginals: Any) -> np.ndarray:
    H = case.H
    return np.array(
        [
            -log_predictive(case.likelihood, case.numbers, y, H @ m, H @ S @ H.T)
            for y, m, S in zip(case.test_y, marginals.mean, marginals.cov, strict=True)
        ]
    )


def run(seed: int, index: int) -> Outcome:
    begun = time.perf_counter()
    case = generate(seed, index)
    found, outcome, message = attempt(lambda: call(case))
    got, exact, error = None, None, np.nan
    if found is not None:
        got, marginals = found
        try:
            exact = oracle(case, marginals)
            errors = np.abs(got - exact) / np.maximum(NATS, RELATIVE * np.abs(exact))
            errors = np.where(np.isfinite(errors), errors, np.inf)
            named = {f"score {i}, {got[i]:.6g} for {exact[i]:.6g}": float(e) for i, e in enumerate(errors)}
            outcome, error, message = judge(named, True, "")
        except NoOracle as problem:
            outcome, message = "no oracle", str(problem)
    script = "" if outcome in ("right", "no oracle") else write_script(case, got, exact, outcome, message)
    group = f"{case.likelihood}, D = {len(case.H)}"
    return Outcome(
        FAMILY, case.name, outcome, error, message, group, script=script, seconds=time.perf_counter() - begun
    )


def write_script(case: Case, got: Any, exact: Any, outcome: str, message: str) -> str:
    values = {k: getattr(case, k) for k in ("decay", "Q", "m0", "P0", "H", "times", "y", "test_times", "test_y")}
    arguments = ", ".join(f"{k}={np.asarray(v).tolist()!r}" for k, v in case.numbers.items())
    return f'''"""{case.name}: {outcome}. {message.replace('"', "'")}

The oracle integrates p(y | Hx) over the posterior's marginal by a rule that follows the likelihood.
"""

import girsanov as gv

{assignments(values)}
model = gv.Model(
    gv.OrnsteinUhlenbeck(decay),
    diffusion=Q,
    initial=gv.GaussianState(m0, P0),
    likelihood=gv.likelihoods.{case.likelihood}({arguments}),
    emission=H,
)
post = gv.infer(model, gv.TimeSeries(times, y), dt={2.0 / (_NODES - 1)!r}, span=(0.0, 2.0))
print("now    ", post.nlpd_values(gv.TimeSeries(test_times, test_y)).tolist())
print("then   ", {None if got is None else got.tolist()!r})
print("exactly", {None if exact is None else exact.tolist()!r})
'''
