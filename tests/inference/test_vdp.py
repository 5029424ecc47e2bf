"""VDP against gradients of its own bound, an independent optimisation, CVI-DP as dt falls, and exact evidence."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
from support import assert_close, assert_gaussian, pose
from tolerances import TOLERANCES

import girsanov as gv
from girsanov._core.precision import float64
from girsanov.chain.linear_sde import Linearisation
from girsanov.chain.smoother import Smoothed, smooth
from girsanov.data.grid import regular_grid
from girsanov.inference.fixed_point import AffineProcess, affine_of, evaluate_process
from girsanov.inference.objective import evaluate
from girsanov.inference.schemes import Adaptive, Euler, Slopes
from girsanov.model.quadrature import GaussHermite
from girsanov.paper.data import inference_model, load_fold

SPAN = (0.0, 2.0)
TIMES = np.array([0.3, 0.9, 1.4, 1.7])
A2, Q2 = np.array([[-0.7, 0.9], [-1.1, -0.2]]), np.array([[0.8, 0.3], [0.3, 0.5]])


def model_of(drift, d=1, variance=0.05, **parts) -> gv.Model:
    parts = {"diffusion": 0.6 if d == 1 else Q2, "initial": gv.GaussianState(0.2 * np.ones(d), 0.3), **parts}
    return gv.Model(drift, likelihood=gv.likelihoods.Gaussian(variance), **parts)


MODELS = {
    "sine": model_of(gv.Sine(1.3, 0.4)),
    "double well": model_of(gv.DoubleWell(1.0, 0.8)),
    "van der Pol": model_of(gv.VanDerPol(0.9, 1.1), 2),
    "seen in part": model_of(lambda x, t: A2 @ jnp.sin(x) - t, 2, emission=np.array([[1.0, 0.5]])),
}


def series_of(model: gv.Model) -> gv.TimeSeries:
    values = np.stack([np.sin(2.0 * TIMES), np.cos(3.0 * TIMES)], 1)[:, : model.data_dim]
    return gv.TimeSeries(TIMES, values)


@float64
def problem_of(model: gv.Model, dt=0.1):
    series = series_of(model)
    points = GaussHermite(30 if model.dim == 1 else 14)
    return pose(model, series, regular_grid(series, dt, SPAN), points.rule(model.dim))


@float64
def some_process(problem, ends: int) -> AffineProcess:
    rng, d, M = np.random.default_rng(0), problem.model.dim, len(problem.data.gaps)
    drift = tuple(
        Linearisation(0.8 * rng.normal(size=(d, d, M)) - np.eye(d)[:, :, None], rng.normal(size=(d, M)))
        for _ in range(ends)
    )
    root = rng.normal(size=(d, d))
    return AffineProcess(drift, rng.normal(size=d), root @ root.T + 2.0 * np.eye(d))


# The multipliers


@pytest.mark.parametrize("name", MODELS)
@float64
def test_adjoint_targets_are_zeros_of_the_gradient_of_the_bound(name):
    """∂L/∂b = ΔQ⁻¹(E[f] + Qλ − A m − b), ∂L/∂A = (∂L/∂b) mᵀ + ΔQ⁻¹(E[∇f] + 2QΨT − A)S, by automatic differentiation."""
    problem = problem_of(MODELS[name])
    scheme, q = Euler(adjoint=True), some_process(problem, 1)
    inside = np.asarray(problem.data.in_chain[1:])
    trial = jax.jit(partial(evaluate_process, problem, scheme))(q)
    grad = jax.jit(jax.grad(lambda q: evaluate_process(problem, scheme, q).elbo))(q)
    (drift,), (m,) = q.drift, trial.target.m
    gap = np.where(inside, problem.data.gaps, 0.0)
    Q_inv = np.linalg.inv(problem.model.diffusion)
    u = np.asarray(trial.target.mean_drift[0]) - np.einsum("ijm,jm->im", drift.A, m) - drift.b
    slope_b = gap * (Q_inv @ u)
    assert_close(grad.drift[0].b, slope_b, "integral", "∂L/∂b")

    # What is left of ∂L/∂A is Δ(Q⁻¹ − 2ΔΨ)(A* − A)S: a step to A* rises in every interval.
    slope_A = np.asarray(grad.drift[0].A) - slope_b[:, None] * np.asarray(m)[None]
    rise = (slope_A * (np.asarray(trial.target.A[0]) - drift.A)).sum((0, 1))
    assert (rise[inside] > 0.0).all()


@float64
def test_the_gradient_in_one_interval_s_slope_is_zero_at_its_target():
    """With a linear drift Ψ does not depend on the moments of q, so that A* is where ∂L/∂A − (∂L/∂b)mᵀ is zero."""
    problem = problem_of(model_of(gv.Linear(A2, np.array([0.3, -0.2])), 2))
    scheme, q = Euler(adjoint=True), some_process(problem, 1)
    trial = jax.jit(partial(evaluate_process, problem, scheme))(q)
    gradient = jax.jit(jax.grad(lambda q: evaluate_process(problem, scheme, q).elbo))
    (drift,), target = q.drift, np.asarray(trial.target.A[0])

    def slope(A, i):
        g = gradient(AffineProcess((Linearisation(A, drift.b),), q.h0, q.J0)).drift[0]
        return np.asarray(g.A)[..., i] - np.outer(np.asarray(g.b)[:, i], np.asarray(trial.target.m[0])[:, i])

    for i in np.flatnonzero(problem.data.in_chain[1:]):
        moved = np.array(drift.A)
        moved[..., i] = target[..., i]
        assert_close(slope(moved, i), np.zeros((2, 2)), "identity", f"interval {i}", size=slope(drift.A, i))


@pytest.mark.parametrize("name", MODELS)
@float64
def test_q0_target_is_the_gradient_at_the_first_node(name):
    """η* − η of q₀ is its natural gradient: F(η* − η) = ∂L/∂η, with η = (h, −½J)."""
    problem = problem_of(MODELS[name])
    scheme, q = Euler(adjoint=True), some_process(problem, 1)
    trial = jax.jit(partial(evaluate_process, problem, scheme))(q)

    def bound(h, J):
        return evaluate_process(problem, scheme, AffineProcess(q.drift, h, J)).elbo

    grad = jax.jit(jax.grad(bound, (0, 1)))(q.h0, q.J0)

    def expectations(h, J):
        S = jnp.linalg.inv(J)
        return S @ h, S + jnp.outer(S @ h, S @ h)

    change = trial.target.h0 - q.h0, trial.target.J0 - q.J0
    F_h, F_J = jax.jvp(expectations, (q.h0, q.J0), change)[1]
    assert_close(grad[0], F_h, "integral", "∂L/∂h")
    assert_close(0.5 * (grad[1] + grad[1].T), -0.5 * F_J, "integral", "∂L/∂J")


@pytest.mark.parametrize("name", MODELS)
@float64
def test_the_bound_is_that_of_the_chain(name):
    """The Girsanov bound of an Euler–Maruyama q is the discrete bound of its chain, entropy and all."""
    model = MODELS[name]
    method = gv.VDP(max_iterations=5, tolerance=1e-12)
    post = gv.infer(model, series_of(model), 0.1, SPAN, method=method, progress=False)
    problem = problem_of(model)
    smoothed = smooth(post.natural)
    N = len(post.times)
    small = pose(model, post.series, regular_grid(post.series, 0.1, SPAN)._replace(capacity=N), problem.rule)
    elbo, _ = eqx.filter_jit(evaluate)(small, Smoothed(smoothed.moments, smoothed.log_det, smoothed.ok))
    assert abs(float(elbo) - post.elbo) < TOLERANCES["optimum"]
    found, wanted = (
        [np.moveaxis(np.asarray(a), -1, 0) for a in (q.m, q.S, q.C)] for q in (smoothed.moments, post.moments)
    )
    assert_gaussian(found, wanted, "identity")


def symmetric(rng: np.random.Generator, d: int, n: int) -> np.ndarray:
    a = rng.normal(size=(d, d, n))
    return a + np.swapaxes(a, 0, 1)


@float64
def test_the_adaptive_solver_agrees_with_scipy_s():
    """Moments and transitions forwards, multipliers with their jumps backwards, of a drift that is linear in time."""
    rng, d, M = np.random.default_rng(1), 2, 6
    gaps = rng.uniform(0.05, 0.4, M)
    drift = tuple(Linearisation(rng.normal(size=(d, d, M)), rng.normal(size=(d, M))) for _ in range(2))
    local = tuple(Slopes(rng.normal(size=(d, M)), symmetric(rng, d, M)) for _ in range(2))
    jumps = Slopes(rng.normal(size=(d, M + 1)), symmetric(rng, d, M + 1))
    m, S = rng.normal(size=d), np.eye(d)
    scheme = Adaptive(rtol=1e-10, atol=1e-13)
    path = jax.jit(lambda drift, m, S: scheme.forward(drift, gaps, Q2, m, S))(drift, jnp.asarray(m), jnp.asarray(S))
    got = jax.jit(lambda drift, local, jumps: scheme.backward(drift, gaps, local, jumps))(drift, local, jumps)

    def between(ends, i, s):
        return [(1 - s) * left[..., i] + s * right[..., i] for left, right in zip(*ends, strict=True)]

    kept = [(end.A, end.b) for end in drift]

    def solved(field, i, start, span):
        """Through interval i, of length one in s; the parts of the state are those of `start`."""
        cuts = np.cumsum([np.size(a) for a in start])[:-1]
        shape = lambda y: [part.reshape(np.shape(a)) for part, a in zip(np.split(y, cuts), start, strict=True)]  # noqa: E731
        pack = lambda parts: np.concatenate([np.ravel(a) for a in parts])  # noqa: E731
        rates = lambda s, y: gaps[i] * pack(field(i, s, *shape(y)))  # noqa: E731
        return shape(scipy.integrate.solve_ivp(rates, span, pack(start), rtol=1e-11, atol=1e-13).y[:, -1])

    def forwards(i, s, m, S, T):
        A, b = between(kept, i, s)
        return A @ m + b, A @ S + S @ A.T + Q2, A @ T

    def backwards(i, s, lam, Psi):
        (A, _), (g_m, g_S) = between(kept, i, s), between(local, i, s)
        return -A.T @ lam - g_m, -A.T @ Psi - Psi @ A - g_S

    for i in range(M):
        m, S, T = solved(forwards, i, (m, S, np.eye(d)), (0.0, 1.0))
        assert_close(path.m[:, i + 1], m, "identity", f"mean {i}")
        assert_close(path.S[..., i + 1], S, "identity", f"covariance {i}")
        assert_close(path.T[..., i], T, "identity", f"transition {i}")
    at = tuple(a[..., M] for a in jumps)
    for i in reversed(range(M)):
        before = solved(backwards, i, at, (1.0, 0.0))
        for end, wanted in zip(got.ends, (before, at), strict=True):
            assert_close(end.m[:, i], wanted[0], "identity", f"λ {i}")
            assert_close(end.S[..., i], wanted[1], "identity", f"Ψ {i}")
        at = tuple(a + jump[..., i] for a, jump in zip(before, jumps, strict=True))
    assert_close(got.first.m, at[0], "identity", "λ of the first node")
    assert_close(got.first.S, at[1], "identity", "Ψ of the first node")


# The optimum


@float64
def dense_optimum(model: gv.Model, dt: float) -> float:
    """The maximum of the discretised bound over A, b and q₀ by a general optimiser, scalar states, plain recursions."""
    series = series_of(model)
    grid = regular_grid(series, dt, SPAN)
    gaps, M = np.diff(grid.times), len(grid.times) - 1
    x, w = np.polynomial.hermite_e.hermegauss(30)
    w = w / w.sum()
    Q, P0 = float(model.diffusion[0, 0]), float(model.initial.cov[0, 0])
    mu0, s2, y = float(model.initial.mean[0]), float(model.likelihood.variance), series.values[:, 0]

    def negative(v):
        A, b, m, S = v[:M], v[M : 2 * M], v[2 * M], jnp.exp(v[2 * M + 1])
        bound = -0.5 * (S / P0 + (m - mu0) ** 2 / P0 - 1.0 - jnp.log(S / P0))
        at = {int(k): i for i, k in enumerate(grid.node)}
        for k in range(M + 1):
            if k in at:
                bound -= 0.5 * (jnp.log(2 * jnp.pi * s2) + ((y[at[k]] - m) ** 2 + S) / s2)
            if k < M:
                z = m + jnp.sqrt(S) * x
                f = jax.vmap(lambda z: model.drift(z[None], 0.0)[0])(z)
                bound -= 0.5 * gaps[k] * w @ (f - A[k] * z - b[k]) ** 2 / Q
                m, S = m + gaps[k] * (A[k] * m + b[k]), (1 + gaps[k] * A[k]) ** 2 * S + gaps[k] * Q
        return -bound

    value_and_grad = jax.jit(jax.value_and_grad(negative))
    start = np.zeros(2 * M + 2)
    out = scipy.optimize.minimize(
        value_and_grad, start, jac=True, method="BFGS", options={"gtol": 1e-7, "maxiter": 5000}
    )
    return -out.fun


@pytest.mark.parametrize("name", ["sine", pytest.param("double well", marks=pytest.mark.slow)])
def test_the_optimum_is_that_of_an_independent_optimisation(name):
    model = MODELS[name]
    post = gv.infer(model, series_of(model), 0.2, SPAN, method=gv.VDP(tolerance=1e-10), progress=False)
    assert post.converged
    assert abs(post.elbo - dense_optimum(model, 0.2)) < TOLERANCES["optimum"]


@pytest.mark.parametrize("name", ["double well", pytest.param("seen in part", marks=pytest.mark.slow)])
def test_cvi_dp_reaches_at_least_as_high(name):
    """Its family contains VDP's: the transitions' noise is free. Started from VDP's q it can only rise."""
    model, series = MODELS[name], series_of(MODELS[name])
    vdp = gv.infer(model, series, 0.05, SPAN, method=gv.VDP(), progress=False)
    cvi = gv.infer(model, series, 0.05, SPAN, progress=False)
    on = gv.infer(model, series, 0.05, SPAN, start=vdp, progress=False)
    assert vdp.converged and (np.diff(vdp.history.elbo) > -TOLERANCES["optimum"]).all()
    assert cvi.elbo > vdp.elbo
    assert (
        on.history.elbo[0] == pytest.approx(vdp.elbo, abs=TOLERANCES["bridge"])
        and abs(on.elbo - cvi.elbo) < TOLERANCES["optimum"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["euler", "adjoint"])
def test_first_order_in_dt_to_the_exact_evidence(solver):
    """Linear drift in two dimensions: the bound rises to the exact evidence, its error halves with dt."""
    model = model_of(gv.Linear(A2, np.array([0.3, -0.2])), 2)
    infer = partial(gv.infer, model, series_of(model), span=SPAN, progress=False)
    exact = infer(dt=0.05, method=gv.CVIDP(time="continuous")).elbo
    method = gv.VDP(0.5, solver=solver, safeguard=False, max_iterations=400)
    coarse, fine = (exact - infer(dt=dt, method=method).elbo for dt in (0.01, 0.005))
    assert fine > 0.0
    assert abs(np.log2(coarse / fine) - 1.0) < TOLERANCES["order"]


@pytest.mark.slow
def test_the_adaptive_solver_is_of_second_order():
    """Ornstein–Uhlenbeck, noise that the grid resolves: the error of the bound falls by four as dt is halved."""
    model = model_of(gv.OrnsteinUhlenbeck(1.2), variance=0.5)
    series = series_of(model)
    exact = gv.infer(model, series, 0.01, SPAN, method=gv.CVIDP(time="continuous"), progress=False).elbo
    method = gv.VDP(solver="adaptive", tolerance=1e-10)
    errors = [abs(exact - gv.infer(model, series, dt, SPAN, method=method, progress=False).elbo) for dt in (0.1, 0.05)]
    assert errors[0] / errors[1] > TOLERANCES["second_order_ratio"]


@pytest.mark.slow
@pytest.mark.parametrize("process", ["ou", "benes"])
def test_cvi_dps_optimum_on_the_papers_data(process, data_dir):
    """The bound differs by what dt costs VDP: it is halved with the step, and extrapolates to CVI-DP's."""
    fold = load_fold(data_dir, process, 0)
    infer = partial(gv.infer, inference_model(process, fold), fold.train, span=fold.span, progress=False)
    coarse, fine = (infer(dt=dt, method=gv.VDP()) for dt in (0.002, 0.001))
    cvi = infer(dt=0.001)
    assert coarse.converged and fine.converged
    error = coarse.elbo - fine.elbo
    assert fine.elbo < cvi.elbo < fine.elbo - 2.0 * error
    assert abs(fine.elbo - error - cvi.elbo) < TOLERANCES["extrapolated"] * abs(error)
    assert abs(fine.nlpd(fold.test) - cvi.nlpd(fold.test)) < TOLERANCES["bridge"]


# How runs end


def test_the_plain_iteration_says_that_it_diverged_and_returns_the_best_met():
    model = model_of(gv.DoubleWell(4.0, 1.0), variance=1e-4)
    method = gv.VDP(1.0, solver="euler", safeguard=False, begin="prior")
    post = gv.infer(model, series_of(model), 0.02, SPAN, method=method, progress=False)
    assert post.status == "diverged" and not post.converged and "smaller omega" in post.message
    assert np.isfinite(post.mean).all() and (post.std > 0).all()
    assert post.elbo == post.history.elbo.max()


def test_safeguarded_from_the_prior_it_rises_to_the_same_optimum():
    model = MODELS["double well"]
    infer = partial(gv.infer, model, series_of(model), 0.05, SPAN, progress=False)
    prior, data = (infer(method=gv.VDP(begin=begin)) for begin in ("prior", "data"))
    assert prior.history.elbo[0] < data.history.elbo[0]
    assert (np.diff(prior.history.elbo) >= -TOLERANCES["optimum"]).all()
    assert abs(prior.elbo - data.elbo) < TOLERANCES["converged"]


@pytest.mark.slow
def test_a_posterior_like_any_other(tmp_path):
    model = MODELS["van der Pol"]
    series = series_of(model)
    post = gv.infer(model, series, 0.05, SPAN, method=gv.VDP(), progress=False)
    again = gv.load(post.save(tmp_path / "vdp.gv"))
    assert np.array_equal(again.mean, post.mean) and again.elbo == post.elbo
    between = post.marginals([0.52, 1.031])
    finer = gv.infer(model, series, 0.0125, SPAN, method=gv.VDP(), progress=False).marginals([0.52, 1.031])
    assert np.abs(between.mean - finer.mean).max() < TOLERANCES["coarse_moments"]
    samples = post.sample(jax.random.key(0), 4000)
    assert (np.abs(samples.mean(0) - post.mean) < TOLERANCES["standard_errors"] * post.std / np.sqrt(4000)).all()
    assert_close(post.sites.natural().J, post.natural.J, "roundtrip", "sites")


# Learning


def test_learning_moves_to_the_maximum_of_vdps_own_bound():
    model = model_of(gv.OrnsteinUhlenbeck(2.5))
    series = series_of(model)
    options = {"trainable": ["drift", "likelihood"], "method": gv.VDP(tolerance=1e-8), "progress": False}
    standard = gv.learn(model, series, 0.05, SPAN, standard_errors=False, **options)
    profile = gv.learn(model, series, 0.05, SPAN, objective="profile", standard_errors=False, **options)
    assert standard.converged and (np.diff(standard.history.elbo) >= 0).all()
    assert standard.elbo > standard.history.elbo[0] + 0.1
    assert abs(standard.elbo - profile.elbo) < TOLERANCES["converged"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainable": "diffusion"}, "VDP cannot learn the diffusion"),
        ({"trainable": "drift", "objective": "modified"}, "needs the sites of CVIDP"),
    ],
)
def test_what_vdp_cannot_learn(options, message):
    model = model_of(gv.OrnsteinUhlenbeck(2.5))
    with pytest.raises(ValueError, match=message):
        gv.learn(model, series_of(model), 0.1, SPAN, method=gv.VDP(), progress=False, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"omega": 0.0}, r"omega must be in \(0, 1\], got 0.0"),
        ({"omega": 1.5}, r"omega must be in \(0, 1\], got 1.5"),
        ({"solver": "heun"}, r"unknown solver 'heun'; choose one of \['euler', 'adjoint', 'adaptive'\]"),
        ({"begin": "here"}, "unknown begin 'here'"),
        ({"rtol": 0.0}, "rtol must be in"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"rho": 0.5}, "VDP has no option 'rho'; its options are omega"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        gv.VDP(**options)


def test_affine_process_of_a_chain_has_its_transitions():
    model = MODELS["sine"]
    post = gv.infer(model, series_of(model), 0.1, SPAN, progress=False)
    with jax.enable_x64(True):
        q = affine_of(post.moments, np.diff(post.times), 1)
    T = post.lag_cov[:, 0, 0] / post.cov[:-1, 0, 0]
    gaps, A, b = np.diff(post.times), np.asarray(q.drift[0].A)[0, 0], np.asarray(q.drift[0].b)[0]
    mean = post.mean[:, 0]
    assert_close(1.0 + gaps * A, T, "exact", "transitions")
    assert_close(mean[:-1] + gaps * (A * mean[:-1] + b), mean[1:], "exact", "means")
