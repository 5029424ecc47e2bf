"""Bad input is a ValueError at the boundary that names the value and its place."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import girsanov as gv

NAN, INF = np.nan, np.inf


pytestmark = pytest.mark.usefixtures("as_a_user")


SERIES = gv.TimeSeries([0.2, 0.5, 0.9], [0.1, 0.2, 0.3])
MODEL = gv.Model(gv.DoubleWell(), 1.0, gv.GaussianState(0.0, 1.0), gv.likelihoods.Gaussian(0.1))
SPD = np.array([[1.0, 0.2], [0.2, 1.0]])


def model(**parts):
    return gv.Model(**{"drift": gv.OrnsteinUhlenbeck(1.0), **parts})


def infer(series=SERIES, m=MODEL, **options):
    return gv.infer(m, series, **{"dt": 0.1, **options})


def gaussian(variance):
    return gv.likelihoods.Gaussian(variance)


# what is wrong: (the call, what the message must say)
CASES = {
    # times
    "unsorted": (
        lambda: gv.TimeSeries([0.0, 2.0, 1.0], [1, 2, 3]),
        r"times\[2\] = 1 comes after times\[1\] = 2.*argsort",
    ),
    "repeated": (lambda: gv.TimeSeries([0.0, 1.5, 1.5], [1, 2, 3]), r"times\[1\] and times\[2\] are both 1\.5"),
    "time is NaN": (lambda: gv.TimeSeries([0.0, NAN, 1.0], [1, 2, 3]), r"times\[1\] is nan"),
    "time is infinite": (lambda: gv.TimeSeries([0.0, 1.0, INF], [1, 2, 3]), r"times\[2\] is inf"),
    "time is minus infinity": (lambda: gv.TimeSeries([-INF, 1.0], [1, 2]), r"times\[0\] is -inf"),
    "times in two dimensions": (
        lambda: gv.TimeSeries([[0.0, 1.0]], [1.0]),
        r"times must have shape \(n,\), got \(1, 2\)",
    ),
    "times in words": (lambda: gv.TimeSeries(["monday"], [1.0]), r"times must be numbers.*monday"),
    # values
    "lengths differ": (lambda: gv.TimeSeries([0.0, 1.0], [1, 2, 3]), r"2 times, 3 rows"),
    "empty": (lambda: gv.TimeSeries([], []), r"series is empty"),
    "no columns": (lambda: gv.TimeSeries([0.0], np.zeros((1, 0))), r"series is empty"),
    "value is infinite": (lambda: gv.TimeSeries([0.0, 1.0], [[1, 2], [3, -INF]]), r"values\[1, 1\] is -inf at time 1"),
    "all missing": (lambda: gv.TimeSeries([0.0, 1.0], [NAN, NAN]), r"every value is missing"),
    "values in three dimensions": (
        lambda: gv.TimeSeries([0.0], np.zeros((1, 1, 1))),
        r"values must have shape.*\(1, 1, 1\)",
    ),
    "values in words": (lambda: gv.TimeSeries([0.0], ["high"]), r"values must be numbers.*high"),
    # the grid
    "dt is zero": (lambda: infer(dt=0.0), r"dt must be positive and finite, got 0\.0"),
    "dt is negative": (lambda: infer(dt=-0.1), r"dt must be positive and finite, got -0\.1"),
    "dt is NaN": (lambda: infer(dt=NAN), r"dt must be positive and finite, got nan"),
    "dt is infinite": (lambda: infer(dt=INF), r"dt must be positive and finite, got inf"),
    "dt is a list": (lambda: infer(dt=[0.1]), r"dt must be positive and finite, got \[0\.1\]"),
    "dt is text": (lambda: infer(dt="0.1"), r"dt must be positive and finite, got '0\.1'"),
    "dt longer than the span": (lambda: infer(dt=0.8), r"dt = 0\.8 is longer than the span 0\.7 from 0\.2 to 0\.9"),
    "dt longer than a given span": (lambda: infer(dt=3.0, span=(0.0, 2.0)), r"dt = 3 is longer than the span 2"),
    "no dt and no grid": (lambda: infer(dt=None), r"either dt=.*or grid="),
    "dt and grid": (lambda: infer(grid=[0.2, 0.5, 0.9]), r"either dt=.*or grid="),
    "span and grid": (lambda: infer(dt=None, grid=[0.2, 0.5, 0.9], span=(0.0, 1.0)), r"span= goes with dt="),
    "span after the first observation": (
        lambda: infer(span=(0.3, 1.0)),
        r"times\[0\] = 0\.2 lies outside span = \(0\.3, 1\)",
    ),
    "span before the last observation": (
        lambda: infer(span=(0.0, 0.8)),
        r"times\[2\] = 0\.9 lies outside span = \(0, 0\.8\)",
    ),
    "span backwards": (lambda: infer(span=(1.0, 0.0)), r"span must be.*start ≤ end, got \(1\.0, 0\.0\)"),
    "span is not finite": (lambda: infer(span=(0.0, INF)), r"span must be.*finite.*inf"),
    "span of three": (lambda: infer(span=(0.0, 1.0, 2.0)), r"span must be \(start, end\), got \(0\.0, 1\.0, 2\.0\)"),
    "span is a number": (lambda: infer(span=2.0), r"span must be \(start, end\), got 2\.0"),
    "grid misses an observation": (
        lambda: infer(dt=None, grid=[0.0, 0.2, 0.6, 0.9]),
        r"misses the observation at time .*0\.5.*index 1.*nearest node is.*0\.6",
    ),
    "grid ends too early": (
        lambda: infer(dt=None, grid=[0.0, 0.2, 0.5]),
        r"misses the observation at time .*0\.9.*index 2",
    ),
    "grid goes back": (lambda: infer(dt=None, grid=[0.2, 0.5, 0.4, 0.9]), r"grid\[2\] = 0\.4 follows grid\[1\] = 0\.5"),
    "grid repeats": (lambda: infer(dt=None, grid=[0.2, 0.5, 0.5, 0.9]), r"grid\[2\] = 0\.5 follows grid\[1\] = 0\.5"),
    "grid has NaN": (lambda: infer(dt=None, grid=[0.2, NAN, 0.9]), r"grid\[1\] is nan"),
    "grid in two dimensions": (
        lambda: infer(dt=None, grid=[[0.2, 0.5, 0.9]]),
        r"grid must have shape \(N,\).*\(1, 3\)",
    ),
    "grid is empty": (lambda: infer(dt=None, grid=[]), r"grid must have shape \(N,\) with N ≥ 1"),
    # variances
    "noise variance is zero": (lambda: gaussian(0.0), r"variance must be positive and finite, got .*0\.0"),
    "noise variance is negative": (lambda: gaussian([0.1, -0.2]), r"variance must be positive and finite, got .*-0\.2"),
    "noise variance is NaN": (lambda: gaussian(NAN), r"variance must be positive and finite, got .*nan"),
    "noise covariance is not symmetric": (
        lambda: gaussian([[1.0, 0.5], [0.1, 1.0]]),
        r"variance must be symmetric.*0\.5.*0\.1",
    ),
    "noise covariance is indefinite": (
        lambda: gaussian([[1.0, 2.0], [2.0, 1.0]]),
        r"variance must be positive definite.*-1",
    ),
    "noise covariance is not square": (
        lambda: gaussian(np.ones((2, 3))),
        r"variance must be a square matrix.*\(2, 3\)",
    ),
    "scale is negative": (lambda: gv.likelihoods.StudentT(scale=-1.0), r"scale must be positive.*-1"),
    "degrees of freedom are zero": (lambda: gv.likelihoods.StudentT(scale=1.0, df=0.0), r"df must be positive.*0"),
    "dispersion is negative": (lambda: gv.likelihoods.NegativeBinomial(-1.0), r"dispersion must be positive.*-1"),
    "no trials": (lambda: gv.likelihoods.Binomial(0), r"trials must be a whole number ≥ 1, got 0"),
    "cutpoints fall": (
        lambda: gv.likelihoods.Ordinal([1.0, 0.0]),
        r"cutpoints must be finite and increase.*1\.0, 0\.0",
    ),
    "one cutpoint as a number": (
        lambda: gv.likelihoods.Ordinal(1.0),
        r"cutpoints must have shape \(K,\) with K ≥ 1, got \(\)",
    ),
    "limits the wrong way": (lambda: gv.likelihoods.Censored(1.0, 2.0, 1.0), r"low < high, got low = 2\.0"),
    "no distribution": (lambda: gv.likelihoods.FromDistribution(3.0), r"takes a function of z.*got 3\.0"),
    "a function that is no distribution": (
        lambda: gv.likelihoods.FromDistribution(lambda z: z),
        r"one entry for each entry of z; for z of shape \(3,\) its batch shape is None",
    ),
    "more successes than trials": (
        lambda: infer(gv.TimeSeries([0.2, 0.9], [1.0, 6.0]), model(likelihood=gv.likelihoods.Binomial(5))),
        r"Binomial observations must be a whole number from 0 to 5; values\[1, 0\] is 6\.0",
    ),
    "a category too many": (
        lambda: infer(gv.TimeSeries([0.2, 0.9], [1.0, 3.0]), model(likelihood=gv.likelihoods.Ordinal([0.0, 1.0]))),
        r"Ordinal observations must be a category from 0 to 2; values\[1, 0\] is 3\.0",
    ),
    "a value that is not positive": (
        lambda: infer(gv.TimeSeries([0.2, 0.9], [1.0, 0.0]), model(likelihood=gv.likelihoods.Gamma())),
        r"Gamma observations must be positive; values\[1, 0\] is 0\.0",
    ),
    "exposure is zero": (lambda: gv.likelihoods.Poisson(exposure=0.0), r"exposure must be positive.*0"),
    "diffusion is zero": (lambda: model(diffusion=0.0), r"diffusion must be positive and finite, got .*0\.0"),
    "diffusion is negative": (
        lambda: model(diffusion=[1.0, -2.0]),
        r"diffusion must be positive and finite, got .*-2\.0",
    ),
    "diffusion is infinite": (lambda: model(diffusion=INF), r"diffusion must be positive and finite, got .*inf"),
    "Q is not symmetric": (
        lambda: model(diffusion=[[1.0, 0.3], [0.2, 1.0]]),
        r"diffusion must be symmetric.*0\.3.*0\.2",
    ),
    "Q is indefinite": (
        lambda: model(diffusion=[[1.0, 1.5], [1.5, 1.0]]),
        r"diffusion must be positive definite.*-0\.5",
    ),
    "a row of Q without noise": (
        lambda: model(diffusion=[[0.0, 0.1], [0.1, 1.0]]),
        r"diffusion\[0, 1\] is 0\.1 although diffusion\[0, 0\] is 0",
    ),
    "no noise at all": (lambda: model(diffusion=[0.0, 0.0]), r"diffusion is zero in every coordinate"),
    "Q is not square": (lambda: model(diffusion=np.ones((2, 3))), r"diffusion must be a square matrix.*\(2, 3\)"),
    "Q has a NaN": (lambda: model(diffusion=[[1.0, NAN], [NAN, 1.0]]), r"diffusion\[0, 1\] is .*nan"),
    "initial covariance is zero": (
        lambda: model(initial=gv.GaussianState(0.0, 0.0)),
        r"initial\.cov must be positive.*0\.0",
    ),
    "initial covariance is indefinite": (
        lambda: model(initial=gv.GaussianState(0.0, [[1.0, 2.0], [2.0, 1.0]])),
        r"initial\.cov must be positive definite",
    ),
    "initial mean is NaN": (lambda: model(initial=gv.GaussianState(NAN, 1.0)), r"initial\.mean must be finite.*nan"),
    # shapes that do not fit together
    "drift and diffusion": (
        lambda: model(drift=gv.VanDerPol(), diffusion=[1.0, 1.0, 1.0]),
        r"drift says 2.*diffusion says 3",
    ),
    "drift and initial mean": (
        lambda: model(drift=gv.VanDerPol(), initial=gv.GaussianState([0.0, 0.0, 0.0], 1.0)),
        r"drift says 2.*initial\.mean says 3",
    ),
    "drift and initial covariance": (
        lambda: model(drift=gv.Linear(SPD), initial=gv.GaussianState(0.0, np.eye(3))),
        r"drift says 2.*initial\.cov says 3",
    ),
    "initial mean is a matrix": (
        lambda: model(initial=gv.GaussianState(np.zeros((2, 2)), 1.0)),
        r"initial\.mean.*\(2, 2\)",
    ),
    "emission and drift": (
        lambda: model(drift=gv.VanDerPol(), emission=np.ones((1, 3))),
        r"drift says 2.*emission's columns says 3",
    ),
    "emission is a vector": (lambda: model(emission=[1.0, 0.0]), r"emission must be a matrix.*\(2,\)"),
    "emission is not finite": (lambda: model(emission=[[NAN]]), r"emission must be finite.*nan"),
    "dim and drift": (lambda: model(drift=gv.VanDerPol(), dim=3), r"dim says 3.*drift says 2"),
    "noise and emission": (
        lambda: model(likelihood=gaussian(SPD), emission=[[1.0], [2.0], [3.0]]),
        r"likelihood\.variance has shape \(2, 2\).*3 entries",
    ),
    "data and model": (
        lambda: infer(gv.TimeSeries([0.2, 0.5], [[1, 2], [3, 4]])),
        r"series has 2 values at each time.*observes 1.*\(2, 1\)",
    ),
    "drift returns the wrong shape": (
        lambda: model(drift=lambda x, t: jnp.zeros(3), dim=2),
        r"must return an array of shape \(2,\).*got \(3,\)",
    ),
    "drift returns a scalar": (
        lambda: model(drift=lambda x, t: x[0]),
        r"must return an array of shape \(1,\).*got \(\)",
    ),
    "drift returns nothing": (lambda: model(drift=lambda x, t: None), r"must return an array of shape \(1,\)"),
    "drift fails": (lambda: model(drift=lambda x, t: x @ jnp.ones((3, 3))), r"drift failed on a state of shape \(1,\)"),
    "drift takes one argument": (lambda: model(drift=lambda x: -x), r"drift failed.*TypeError"),
    "drift is a number": (lambda: model(drift=3.0), r"drift must be a callable f\(x, t\), got 3\.0"),
    "A is not square": (lambda: gv.Linear(np.ones((2, 3))), r"square matrix A, got shape \(2, 3\)"),
    "A and b": (lambda: gv.Linear(SPD, [1.0, 2.0, 3.0]), r"b of shape \(2,\).*got \(3,\)"),
    "parameters of a drift": (
        lambda: model(drift=gv.DoubleWell([1.0, 2.0], [1.0, 2.0, 3.0])),
        r"different lengths: \[2, 3\]",
    ),
    "no stationary law": (
        lambda: model(drift=gv.DoubleWell(), initial="stationary"),
        r"stationary.*DoubleWell.*does not offer",
    ),
    # data outside the likelihood's domain
    "negative count": (
        lambda: infer(gv.TimeSeries([0.2, 0.9], [1.0, -2.0]), model(likelihood=gv.likelihoods.Poisson())),
        r"values\[1, 0\] is .*-2",
    ),
    "half a count": (
        lambda: infer(gv.TimeSeries([0.2, 0.9], [0.5, 1.0]), model(likelihood=gv.likelihoods.Poisson())),
        r"a count.*values\[0, 0\] is .*0\.5",
    ),
    "not 0 or 1": (
        lambda: infer(gv.TimeSeries([0.2, 0.9], [1.0, 2.0]), model(likelihood=gv.likelihoods.Bernoulli())),
        r"0 or 1; values\[1, 0\] is .*2",
    ),
    # options
    "unknown option of infer": (lambda: infer(stepsize=0.1), r"infer has no option 'stepsize'.*max_iterations"),
    "unknown option of CVIDP": (lambda: gv.CVIDP(learning_rate=0.1), r"CVIDP has no option 'learning_rate'.*tolerance"),
    "unknown engine": (lambda: gv.CVIDP(engine="parallel"), r"unknown engine 'parallel'.*sequential.*partitioned"),
    "unknown initial state": (
        lambda: model(initial="steady"),
        r"initial must be a GaussianState or 'stationary', got 'steady'",
    ),
    "unknown activation": (
        lambda: gv.MLP(1, activation="gelu", key=jax.random.key(0)),
        r"unknown activation 'gelu'.*relu",
    ),
    "unknown quadrature": (lambda: gv.CVIDP(quadrature="sparse"), r"quadrature must be.*'sparse'"),
    "unknown method": (lambda: infer(method="vdp"), r"method must be.*'vdp'"),
    "not a likelihood": (lambda: model(likelihood=0.1), r"likelihood must come from girsanov\.likelihoods, got 0\.1"),
    "not a model": (lambda: gv.infer(gv.DoubleWell(), SERIES, dt=0.1), r"model must be a gv\.Model, got DoubleWell"),
    "not a series": (lambda: gv.infer(MODEL, ([0.0], [1.0]), dt=0.1), r"series must be a gv\.TimeSeries.*got tuple"),
    "rho is zero": (lambda: gv.CVIDP(rho=0.0), r"rho must be in \(0, 1\], got 0\.0"),
    "rho is above one": (lambda: gv.CVIDP(rho=1.5), r"rho must be in \(0, 1\], got 1\.5"),
    "no safeguard without rho": (lambda: gv.CVIDP(safeguard=False), r"safeguard=False.*rho"),
    "tolerance is zero": (lambda: infer(tolerance=0.0), r"tolerance must be positive and finite, got 0\.0"),
    "tolerance is NaN": (lambda: gv.CVIDP(tolerance=NAN), r"tolerance must be positive and finite, got nan"),
    "max_iterations is negative": (lambda: infer(max_iterations=-1), r"max_iterations must be a whole number.*got -1"),
    "max_iterations is a fraction": (
        lambda: gv.CVIDP(max_iterations=2.5),
        r"max_iterations must be a whole number.*got 2\.5",
    ),
    # simulation
    "simulate at no time": (
        lambda: gv.simulate(MODEL, [], key=jax.random.key(0)),
        r"times must have shape \(n,\) with n ≥ 1",
    ),
    "simulate backwards": (
        lambda: gv.simulate(MODEL, [1.0, 0.5], key=jax.random.key(0)),
        r"times\[1\] = 0\.5 comes after",
    ),
    "simulate from too late": (
        lambda: gv.simulate(MODEL, [1.0], key=jax.random.key(0), start=2.0),
        r"start = 2 comes after.*1",
    ),
    "simulate from a list": (
        lambda: gv.simulate(MODEL, [1.0], key=jax.random.key(0), start=[0.0]),
        r"start must be one finite number, got \[0\.0\]",
    ),
    "simulate with no step": (
        lambda: gv.simulate(MODEL, [1.0, 2.0], key=jax.random.key(0), dt=0.0),
        r"dt must be positive.*0\.0",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_names_the_value_and_its_place(name):
    call, message = CASES[name]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()


@given(
    times=st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8, unique=True), data=st.randoms(use_true_random=False)
)
def test_a_permuted_series_raises(times, data):
    """Any order but the increasing one is an error that says how to sort."""
    order = sorted(times)
    gv.TimeSeries(order, np.zeros(len(order)))
    shuffled = list(order)
    data.shuffle(shuffled)
    assume(shuffled != order)
    with pytest.raises(ValueError, match=r"times must increase.*argsort"):
        gv.TimeSeries(shuffled, np.zeros(len(order)))


def test_the_grid_needs_no_equal_floats():
    """An observation a rounding error away from a node is that node, and keeps its own time."""
    t = 0.1 + 0.2  # not 0.3
    post = infer(gv.TimeSeries([0.1, t, 0.5], [0.1, 0.2, 0.3]), dt=None, grid=np.round(np.linspace(0.0, 0.5, 6), 1))
    assert len(post.times) == 6
    assert post.times[3] == t


# --- drifts that are not finite


class Blows(eqx.Module):
    """−x, but not finite for states above `limit` from time `since` on."""

    limit: float
    since: float
    value: float

    def __call__(self, x, t):
        return jnp.where((x > self.limit) & (t >= self.since), self.value, -x)


@pytest.mark.parametrize(
    ("limit", "since", "value"), [(-10.0, 0.0, NAN), (0.25, 0.0, NAN), (-10.0, 0.55, NAN), (-10.0, 0.0, INF)]
)
def test_a_drift_that_is_not_finite_is_named_with_state_and_time(limit, since, value):
    import re

    m = model(drift=Blows(limit, since, value), likelihood=gaussian(0.1))
    with pytest.raises(ValueError, match=r"the drift returned \[(nan|inf)\] at state") as error:
        infer(m=m, span=(0.0, 0.9))
    state, time = re.search(r"state \[(.*)\] and time (.*);", str(error.value)).groups()
    assert float(state) > limit
    assert since <= float(time) <= 0.9


# --- starts that do not fit


def test_start_must_fit_the_series_and_the_state():
    post = infer(max_iterations=1)
    with pytest.raises(ValueError, match="same observation times"):
        infer(gv.TimeSeries([0.2, 0.6, 0.9], [0.1, 0.2, 0.3]), start=post)
    with pytest.raises(ValueError, match=r"start= has a state of dimension 1, the model of dimension 2"):
        infer(m=model(drift=gv.Linear(-np.eye(2)), emission=[[1.0, 0.0]]), start=post)
