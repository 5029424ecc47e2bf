"""Random effects: parameters of single series with a normal law over the series, whose mean and variance are learnt.

In free coordinates φ_i ~ N(μ, diag τ²). The marginal bound of a panel is Σ_i log ∫ exp(P_i(θ, φ)) N(φ; μ, τ²) dφ, where
P_i is the bound of series i, and Laplace's method at the mode φ_i of the integrand gives
    M = Σ_i [P_i(θ, φ_i) − ½ Σ_k ((φ_ik − μ_k)²/τ_k² + log τ_k²) − ½ log|B_i|],   B_i = C_i + diag τ⁻²,   C_i = −∇²P_i.
It is exact where P_i is quadratic in φ. The gradient of M in λ = (θ, μ, log τ²) is that with φ_i held fixed, plus that
of −½ log|B_i|, in which φ_i moves by B_i⁻¹ ∂²/∂φ∂λ of the integrand's log. C and its derivatives come from differences
of the gradient of P, whose steps are shares of the standard deviations of φ. Where covariates enter the means, μ of
series i is μ + β (c_i − c̄), and β is the last part of λ.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from girsanov.inference.status import Status
from girsanov.learning.inner import Evaluate, Peaks, climb
from girsanov.learning.panel_learner import PanelLearner
from girsanov.learning.panel_problem import PanelProblem
from girsanov.learning.panel_step import Step
from girsanov.learning.parameters import Parameter, Spec
from girsanov.learning.slopes import Slopes, no_slopes

_STEP = 0.1  # of the differences, in standard deviations of φ
_ROUNDS = 8  # of the search for a first mean and variance
_FIRST = 0.3  # the first standard deviation, as a share of the size of the mean


def law_spec(random: Spec) -> Spec:
    """Return the means and variances of random effects as parameters; their values are in free coordinates."""
    means = tuple(Parameter(f"mean({p.path})", "real", (p.size,), p.size) for p in random)
    return means + tuple(Parameter(f"variance({p.path})", "positive", (p.size,), p.size) for p in random)


@dataclasses.dataclass
class Curvature:
    """Second derivatives of all P_i at one point: C = −∂²P/∂φ², (S, K, K), and X = ∂²P/∂φ∂θ, (S, K, P)."""

    C: np.ndarray
    X: np.ndarray


class RandomLearner(PanelLearner):
    """The marginal bound of a panel with random effects, as a function of λ."""

    def __init__(
        self,
        problem: PanelProblem,
        shared: Spec,
        random: Spec,
        method: Any,
        priors: dict,
        begun: float,
        say: Any,
        slopes: Slopes | None = None,
    ):
        super().__init__(problem, shared, method, priors, begun, say)
        slopes = no_slopes(random, len(problem.datas)) if slopes is None else slopes
        self.spec = shared + law_spec(random) + slopes.spec
        self.effects, self.design = sum(p.size for p in random), slopes.design
        self.units = np.concatenate([np.ones(self.size + 2 * self.effects), slopes.units])

    def law(self, lam: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the means μ + β (c_i − c̄) of all series, (S, K), and τ²."""
        mean, variance, slopes = np.split(lam[self.size :], [self.effects, 2 * self.effects])
        return mean + self.design @ slopes, np.exp(variance)

    def penalised(self, lam: Float[np.ndarray, " L"]) -> Evaluate:
        """Return the function that `climb` maximises: P_i plus the log density of φ_i without its constant."""
        mean, variance = self.law(lam)
        bounds = self.evaluator(lam[: self.size])

        def evaluate(phi: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            value, grad = bounds(phi, which)
            e = phi - mean[which]
            return value - 0.5 * (e**2 / variance + np.log(variance)).sum(1), grad - e / variance

        return evaluate

    def first_law(self, theta: np.ndarray, phi: np.ndarray) -> tuple[np.ndarray, Step]:
        """Return λ and the step from which a fit starts: means and variances of the effects at θ, by EM."""
        law, variance = (
            np.concatenate([phi, np.zeros(self.design.shape[2])]),
            (_FIRST * np.maximum(1.0, np.abs(phi))) ** 2,
        )
        at, B = np.tile(phi, (len(self.problem.datas), 1)), None
        for _ in range(_ROUNDS):
            lam = self._joined(theta, law, variance)
            peaks = climb(self.penalised(lam), at, B)
            if not np.isfinite(peaks.value).all():
                break
            at, B = peaks.phi, peaks.B
            with np.errstate(all="ignore"):
                spread = 1.0 / np.maximum(np.einsum("ikk->ik", B), 1.0 / variance)
            law, left = self._regressed(at)
            old, variance = variance, (left**2 + spread).mean(0)
            B = B + (1.0 / variance - 1.0 / old)[:, None] * np.eye(self.effects)
        lam = self._joined(theta, law, variance)
        return lam, self._step(lam, at, B)

    def _joined(self, theta: np.ndarray, law: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Return λ from θ, (μ, β) and τ²."""
        return np.concatenate([theta, law[: self.effects], np.log(variance), law[self.effects :]])

    def _regressed(self, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (μ, β) by least squares and what is left, (S, K)."""
        S, K = phi.shape
        everyone = np.concatenate([np.broadcast_to(np.eye(K), (S, K, K)), self.design], axis=2)
        law = np.linalg.lstsq(everyone.reshape(S * K, -1), phi.ravel(), rcond=None)[0]
        return law, phi - everyone @ law

    def _step(self, theta: np.ndarray, phi: np.ndarray, B: Any) -> Step:
        """Return the marginal bound at λ = `theta` and its gradient, with the modes of all effects."""
        lam = theta
        mean, variance = self.law(lam)
        evaluate, everyone = self.penalised(lam), np.arange(len(phi))
        peaks = climb(evaluate, phi, B)
        nothing = Step(-np.inf, Status.BAD_START, peaks, np.full(len(lam), np.nan))
        if not np.isfinite(peaks.value).all():
            return nothing
        value, grad = evaluate(peaks.phi, everyone)
        shared = self._shared.copy()
        sd = 1.0 / np.sqrt(np.maximum(np.einsum("ikk->ik", peaks.B), 1.0 / variance))
        here = self._curvature(lam[: self.size], peaks.phi, sd)
        B = here.C + np.diag(1.0 / variance)
        if not (np.isfinite(B).all() and (np.linalg.eigvalsh(B)[:, 0] > 0.0).all()):
            return nothing
        peaks = Peaks(peaks.phi, value, grad, B, peaks.done)
        total = float((value - 0.5 * np.linalg.slogdet(B)[1]).sum())
        away = (peaks.phi - mean) / variance
        along = np.einsum("sk,skb->sb", away, self.design)
        fixed = np.column_stack([shared, away, 0.5 * ((peaks.phi - mean) * away - 1.0), along])
        slopes = fixed - 0.5 * self._log_det_slopes(lam, peaks, here, np.column_stack([shared, grad + away]))
        return Step(total, Status.CONVERGED, peaks, slopes.sum(0))

    def _curvature(self, theta: np.ndarray, phi: np.ndarray, sd: np.ndarray) -> Curvature:
        """Return the second derivatives of all P_i by central differences of their gradients."""
        evaluate, everyone = self.evaluator(theta), np.arange(len(phi))
        C = np.zeros((*phi.shape, self.effects))
        X = np.zeros((*phi.shape, self.size))
        for k in range(self.effects):
            step = _STEP * sd[:, k]
            ends = []
            for sign in (1.0, -1.0):
                moved = phi.copy()
                moved[:, k] += sign * step
                grad = evaluate(moved, everyone)[1]
                ends.append((grad, self._shared.copy()))
            C[:, k] = (ends[1][0] - ends[0][0]) / (2.0 * step[:, None])
            X[:, k] = (ends[0][1] - ends[1][1]) / (2.0 * step[:, None])
        return Curvature(0.5 * (C + np.swapaxes(C, 1, 2)), X)

    def _log_det_slopes(
        self, lam: np.ndarray, peaks: Peaks, here: Curvature, slope: Float[np.ndarray, "S n"]
    ) -> Float[np.ndarray, "S L"]:
        """Return the derivatives of log|B_i| in λ, in which the modes move.

        With B⁻¹ = Σ_k v_k v_kᵀ and g = ∂P/∂(θ, φ), which is `slope` at the modes,
            tr(B⁻¹ ∂C) = −∂ Σ_k ∂²P(φ + ε v_k)/∂ε² = −Σ_k ∂²g(φ + ε v_k)/∂ε²   at ε = 0,
        so that two evaluations for each effect give the derivatives in all of (θ, φ).
        """
        theta, phi, P, K = lam[: self.size], peaks.phi, self.size, self.effects
        mean, variance = self.law(lam)
        B_inv = np.linalg.inv(peaks.B)
        v = np.swapaxes(np.linalg.inv(np.linalg.cholesky(peaks.B)), 1, 2)
        traces, evaluate, everyone = np.zeros((len(phi), P + K)), self.evaluator(theta), np.arange(len(phi))
        for k in range(K):
            for sign in (1.0, -1.0):
                own = evaluate(phi + sign * _STEP * v[:, :, k], everyone)[1]
                traces -= (np.column_stack([self._shared, own]) - slope) / _STEP**2
        by_theta, by_phi = traces[:, :P], traces[:, P:]
        # ∂²/∂φ∂λ of P_i plus the log density of φ_i
        mixed = np.concatenate(
            [
                here.X,
                np.broadcast_to(np.diag(1.0 / variance), (len(phi), K, K)),
                ((phi - mean) / variance)[:, :, None] * np.eye(K),
                self.design / variance[:, None],
            ],
            axis=2,
        )
        moves = np.einsum("ikl,ilj->ikj", B_inv, mixed)  # dφ/dλ
        own = np.column_stack([by_theta, np.zeros((len(phi), K)), -np.einsum("ikk->ik", B_inv) / variance])
        own = np.column_stack([own, np.zeros((len(phi), self.design.shape[2]))])
        return own + np.einsum("ik,ikj->ij", by_phi, moves)
