"""Stiff and badly scaled linear models in continuous time, against arithmetic of sixty digits."""

import itertools
from decimal import Decimal, localcontext
from fractions import Fraction

import jax
import numpy as np
import pytest
import scipy.integrate
from support import bridge_by_precisions
from tolerances import TOLERANCES

import girsanov as gv
from girsanov.chain.bridge import bridge
from girsanov.chain.linear_sde import Linearisation, linear_transition
from girsanov.chain.moments import Moments

DIGITS = 60


# --- exact arithmetic: NumPy arrays of Decimal or Fraction


def exact(a, number=Decimal):
    """The same array in exact numbers: every float is one."""
    return np.vectorize(lambda x: number(float(x)), otypes=[object])(np.asarray(a, dtype=float))


def inverse(a):
    """Gauss–Jordan with pivoting, in whatever arithmetic the entries have."""
    n = len(a)
    one = type(a[0, 0])(1)
    work = np.concatenate([a, one * np.eye(n, dtype=int).astype(object)], axis=1)
    for k in range(n):
        p = k + int(np.argmax([abs(x) for x in work[k:, k]]))
        work[[k, p]] = work[[p, k]]
        work[k] = work[k] / work[k, k]
        for i in range(n):
            if i != k:
                work[i] = work[i] - work[i, k] * work[k]
    return work[:, n:]


class Rates:
    """A = V diag(λ) V⁻¹ with whole V and V⁻¹ and dyadic λ: exact in float64, and so are its transitions here."""

    def __init__(self, rates, seed=0):
        d = len(rates)
        rng = np.random.default_rng(seed)
        low = np.tril(rng.integers(-1, 2, size=(d, d)), -1) + np.eye(d, dtype=int)
        up = np.triu(rng.integers(-1, 2, size=(d, d)), 1) + np.eye(d, dtype=int)
        self.V, self.rates = exact(low @ up), exact(rates)
        self.V_inv = exact(np.rint(np.linalg.inv(low @ up)))
        with localcontext(prec=DIGITS):
            self.A = ((self.V * self.rates) @ self.V_inv).astype(float)

    def transition(self, b, Q, gap):
        """Φ, c, Σ of dx = (A x + b) dt + L dβ: integrals of exponentials in the coordinates where A is diagonal."""

        def integral(rate):
            return gap if rate == 0 else ((rate * gap).exp() - 1) / rate

        growth = np.array([(r * gap).exp() for r in self.rates])
        Phi = (self.V * growth) @ self.V_inv
        c = self.V @ (np.array([integral(r) for r in self.rates]) * (self.V_inv @ b))
        Q = self.V_inv @ Q @ self.V_inv.T
        Sigma = np.array(
            [[Q[i, j] * integral(r + s) for j, s in enumerate(self.rates)] for i, r in enumerate(self.rates)]
        )
        return Phi, c, self.V @ Sigma @ self.V.T


def spread_rates(d, fastest, ratio=1024.0):
    """Dyadic rates from fastest/ratio to fastest."""
    return -fastest * 2.0 ** np.rint(np.linspace(-np.log2(ratio), 0.0, d))[::-1] if d > 1 else np.array([-fastest])


def kalman(process: Rates, b, Q, mean, cov, variance, gaps, y):
    """Log evidence, and mean and covariance of the last state, all of it observed with independent noise."""
    b, Q, m, P, y = (exact(a) for a in (b, Q, mean, cov, y))
    R, two_pi, evidence = (
        Decimal(variance),
        Decimal(2) * Decimal("3.14159265358979323846264338327950288419716939937510582097"),
        0,
    )
    for gap, row in zip(gaps, y, strict=True):
        Phi, c, Sigma = process.transition(b, Q, Decimal(float(gap)))
        m, P = Phi @ m + c, Phi @ P @ Phi.T + Sigma
        for j, value in enumerate(row):
            V, e = P[j, j] + R, value - m[j]
            evidence -= ((two_pi * V).ln() + e * e / V) / 2
            m, P = m + P[:, j] * e / V, P - np.outer(P[:, j], P[j]) / V
    return float(evidence), m.astype(float), P.astype(float)


def close(got, wanted, tolerance, size=0.0):
    """Whether entries agree, as a share of the largest one wanted or of a larger size."""
    wanted = np.asarray(wanted, dtype=float)
    return np.abs(np.asarray(got) - wanted).max() <= TOLERANCES[tolerance] * max(size, np.abs(wanted).max())


# --- transitions


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_transitions_have_all_their_digits_however_stiff(d):
    rng = np.random.default_rng(d)
    B = rng.integers(-2, 3, size=(d, d))
    Q, b = (B @ B.T + np.eye(d)) / 4.0, rng.integers(-3, 4, size=d) / 4.0 + 1.0
    fastest = 2.0 ** np.array([-20, -10, -4, -1, 0, 2, 4, 5, 7, 10, 14])
    processes = [Rates(spread_rates(d, f), seed=d) for f in fastest]
    A = np.stack([p.A for p in processes], -1)
    lanes = np.broadcast_to(b[:, None], (d, len(fastest)))
    with jax.enable_x64(True):
        got = [np.asarray(a) for a in linear_transition((A, A), (lanes, lanes), Q, np.ones(len(fastest)))]
    for i, process in enumerate(processes):
        with localcontext(prec=DIGITS):
            wanted = process.transition(exact(b), exact(Q), Decimal(1))
        for name, a, w in zip(("Phi", "c", "Sigma"), got, wanted, strict=True):
            size = 1.0 if name == "Phi" else 0.0  # what is left of a state is small against the state
            assert close(a[..., i], w, "stiff_transition", size), f"{name} at rate·gap {fastest[i]:g}"
        Sigma, W = got[2][..., i], np.asarray(wanted[2], dtype=float)
        sd = np.sqrt(np.diag(W))
        assert np.abs((Sigma - W) / np.outer(sd, sd)).max() <= TOLERANCES["stiff_transition"]


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("rate", [2.0, 40.0, 400.0])
def test_transitions_where_the_drift_turns_over_a_stiff_gap(d, rate):
    """By a fifth over the gap, together with b: Σ stays positive, and all is near what an ODE solver says."""
    turn = np.array([[-1.0, 0.5], [-0.2, -0.1]])[:d, :d]
    A0, A1, Q = rate * turn, rate * (1.2 * turn), np.eye(d)
    b0, b1 = rate * np.ones(d), -0.5 * rate * np.ones(d)

    def rates(t, y):
        Phi, c, S = y[: d * d].reshape(d, d), y[d * d : d * d + d], y[d * d + d :].reshape(d, d)
        A, b = A0 + t * (A1 - A0), b0 + t * (b1 - b0)
        return np.concatenate([(A @ Phi).ravel(), A @ c + b, (A @ S + S @ A.T + Q).ravel()])

    start = np.concatenate([np.eye(d).ravel(), np.zeros(d + d * d)])
    y = scipy.integrate.solve_ivp(rates, (0.0, 1.0), start, method="Radau", rtol=1e-9, atol=1e-12).y[:, -1]
    wanted = y[: d * d].reshape(d, d), y[d * d : d * d + d], y[d * d + d :].reshape(d, d)
    with jax.enable_x64(True):
        ends = [tuple(x[..., None] for x in pair) for pair in ((A0, A1), (b0, b1))]
        Phi, c, Sigma = (np.asarray(a)[..., 0] for a in linear_transition(*ends, Q, np.ones(1)))
    assert close(Phi, wanted[0], "stiff_turn", size=1.0)
    assert close(c, wanted[1], "stiff_turn")
    assert close(Sigma, wanted[2], "stiff_turn")
    assert (np.linalg.eigvalsh(Sigma) > 0.0).all()


# --- whole runs


TIMES = np.array([0.5, 1.5, 1.5 + 2.0**-30, 2.25, 3.0, 4.0, 5.5, 6.0])  # two observations 1e-9 apart
GAPS = np.diff(TIMES, prepend=0.0)


def solved(process: Rates, Q, variance, scale=1.0):
    """The posterior, and the exact evidence with the last state's mean and covariance."""
    d = len(process.A)
    b, y = np.ones(d), scale * np.rint(64.0 * np.random.default_rng(5).normal(size=(len(TIMES), d))) / 64.0
    initial = gv.GaussianState(np.zeros(d), Q)
    model = gv.Model(gv.Linear(process.A, b), Q, initial, gv.likelihoods.Gaussian(variance * np.eye(d)))
    post = gv.infer(
        model, gv.TimeSeries(TIMES, y), grid=np.append(0.0, TIMES), method=gv.CVIDP(time="continuous"), progress=False
    )
    with localcontext(prec=DIGITS):
        return post, kalman(process, b, Q, np.zeros(d), Q, variance, GAPS, y)


def assert_right(post, wanted, what, tolerance="stiff"):
    evidence, mean, cov = wanted
    sd, share = np.sqrt(np.diag(cov)), TOLERANCES[tolerance]
    assert abs(post.elbo - evidence) <= share * max(1.0, abs(evidence)), what
    assert (np.abs(post.mean[-1] - mean) <= share * sd).all(), what
    assert (np.abs(post.cov[-1] - cov) <= share * np.outer(sd, sd)).all(), what


@pytest.mark.filterwarnings("ignore:the step of")
@pytest.mark.parametrize("d", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_stiff_linear_models_reach_the_exact_evidence(d):
    for fastest, variance in itertools.product(2.0 ** np.array([-4, 1, 6, 10]), (2.0**-12, 1.0)):
        post, wanted = solved(Rates(spread_rates(d, fastest), seed=d), np.eye(d), variance)
        assert post.converged, f"rate {fastest:g}, noise {variance:g}: {post.status}"
        assert_right(post, wanted, f"rate {fastest:g}, noise {variance:g}")


@pytest.mark.filterwarnings("ignore:the step of")
def test_converged_is_right_also_where_scales_are_far_apart():
    """Rounding may stop a run; it must not make it say what is not so."""
    converged = 0
    for Q, variance, fastest in itertools.product((2.0**-26, 1.0, 2.0**26), (2.0**-33, 2.0**20), (1.0, 1024.0)):
        post, wanted = solved(Rates(spread_rates(2, fastest), seed=2), Q * np.eye(2), variance, scale=np.sqrt(Q))
        if post.converged:
            converged += 1
            assert_right(post, wanted, f"Q {Q:g}, noise {variance:g}, rate {fastest:g}", "far_scales")
        assert np.isfinite(post.cov).all()
    assert converged >= 6  # half of them at the least: a claim about none would be none


# --- between the nodes


def ends_of_a_gap(T, c, V, rng):
    """Joint moments of two nodes: a start, the transition and something seen at the end; rounded to float64."""
    d = len(c)
    S, m = np.eye(d), rng.integers(-4, 5, size=d) / 2.0
    m_next, S_next, C = T @ m + c, T @ S @ T.T + V, T @ S
    K = S_next @ np.linalg.inv(S_next + np.diag(np.diag(S_next)) / 4.0)
    m_next, m = m_next + K @ np.sqrt(np.diag(S_next)), m + C.T @ np.linalg.inv(S_next) @ K @ np.sqrt(np.diag(S_next))
    S = S - C.T @ np.linalg.inv(S_next) @ K @ C
    C = C - K @ C
    return m, S, m_next, S_next - K @ S_next, C


# One scale for both states, or two that the moments of the nodes, in float64, can tell apart over the shortest gap.
DIFFUSIONS = [
    np.diag(a) for a in ((2.0**-27, 2.0**-27), (1.0, 1.0), (2.0**27, 2.0**27), (2.0**-12, 4096.0), (4096.0, 1.0))
]
SHARES = (1e-15, 1e-6, 0.3, 1.0 - 1e-6, 1.0 - 1e-15)


@pytest.mark.parametrize("gap", [2.0**-30, 0.125])
@pytest.mark.parametrize("Q", DIFFUSIONS, ids=lambda Q: str(np.diag(Q)))
def test_marginals_off_the_grid_in_discrete_time(Q, gap):
    rng = np.random.default_rng(0)
    A, b = np.array([[-1.5, 2.0], [-0.5, -3.0]]), np.array([0.5, -1.0])
    ends = ends_of_a_gap(np.eye(2) + gap * A, gap * b, gap * Q, rng)
    m, S, m_next, S_next, C = ends
    q = Moments(np.stack([m, m_next], -1), np.stack([S, S_next], -1), C[..., None])
    times = np.array([gap * s for s in SHARES])
    mean, cov = bridge(q, Linearisation(A[..., None], b[..., None]), Q, np.array([0.0, gap]), times)
    for i, t in enumerate(times):
        s, u = Fraction(t), Fraction(gap - t)
        A_, b_, Q_, eye = (exact(a, Fraction) for a in (A, b, Q, np.eye(2)))
        parts = (eye + s * A_, s * b_, s * Q_), (eye + u * A_, u * b_, u * Q_)
        out = bridge_by_precisions(*parts, [exact(a, Fraction) for a in ends], inverse)
        wanted_mean, wanted_cov = (np.asarray(a, dtype=float) for a in out)
        sd = np.sqrt(np.diag(wanted_cov))
        assert (np.abs(mean[i] - wanted_mean) <= TOLERANCES["bridge_rounding"] * (sd + np.abs(wanted_mean))).all()
        assert (np.abs(cov[i] - wanted_cov) <= TOLERANCES["bridge_rounding"] * np.outer(sd, sd)).all()
        assert (np.linalg.eigvalsh(cov[i] / np.outer(sd, sd)) > 0.0).all()


@pytest.mark.parametrize("fastest", [1.0, 64.0, 1024.0])
def test_marginals_off_the_grid_in_continuous_time(fastest):
    rng = np.random.default_rng(1)
    process, b, Q = Rates(spread_rates(2, fastest), seed=2), np.array([0.5, -1.0]), np.diag([2.0**-10, 4.0])
    with localcontext(prec=DIGITS):
        whole = process.transition(exact(b), exact(Q), Decimal(1))
    ends = ends_of_a_gap(*(np.asarray(a, dtype=float) for a in whole), rng)
    m, S, m_next, S_next, C = ends
    q = Moments(np.stack([m, m_next], -1), np.stack([S, S_next], -1), C[..., None])
    base = Linearisation(np.stack([process.A] * 2, -1), np.stack([b] * 2, -1))
    times = np.array(SHARES)
    mean, cov = bridge(q, base, Q, np.array([0.0, 1.0]), times, "continuous")
    for i, t in enumerate(times):
        with localcontext(prec=3 * DIGITS):
            parts = [process.transition(exact(b), exact(Q), gap) for gap in (Decimal(t), Decimal(1.0 - t))]
            out = bridge_by_precisions(*parts, [exact(a) for a in ends], inverse)
            wanted_mean, wanted_cov = (np.asarray(a, dtype=float) for a in out)
        sd = np.sqrt(np.diag(wanted_cov))
        assert (np.abs(mean[i] - wanted_mean) <= TOLERANCES["bridge_rounding"] * (sd + np.abs(wanted_mean))).all()
        assert (np.abs(cov[i] - wanted_cov) <= TOLERANCES["bridge_rounding"] * np.outer(sd, sd)).all()
        assert (np.linalg.eigvalsh(cov[i]) > 0.0).all()
