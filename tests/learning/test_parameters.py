"""Trainable parameters: names and paths, constraints as bijections, and what is left as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support import assert_close

import girsanov as gv
from girsanov.learning.objectives import log_prior
from girsanov.learning.parameters import (
    Parameter,
    constrain,
    constrained_entries,
    entries,
    insert,
    leaves_by_path,
    make_spec,
    split,
    to_vector,
    unconstrain,
)

PATHS = ["drift.rate", "drift.damping", "diffusion", "initial.mean", "initial.cov", "likelihood.variance", "emission"]
SPD = np.array([[1.0, 0.3], [0.3, 0.5]])


@pytest.fixture(autouse=True)
def double_precision():
    """These functions are inner ones: the public verb that calls them sets float64."""
    with jax.enable_x64(True):
        yield


def van_der_pol(diffusion=1.0, variance=0.1, cov=1.0) -> gv.Model:
    return gv.Model(
        gv.VanDerPol(rate=5.0, damping=2.0),
        diffusion=diffusion,
        initial=gv.GaussianState(mean=[1.0, -1.0], cov=cov),
        likelihood=gv.likelihoods.Gaussian(variance=variance),
    )


def names(model: gv.Model, trainable) -> list[str]:
    return [p.path for p in make_spec(model, trainable)]


def test_a_name_stands_for_all_below_it():
    model = van_der_pol()
    assert list(leaves_by_path(model)) == PATHS
    assert names(model, "drift") == ["drift.rate", "drift.damping"]
    assert names(model, ["initial", "drift.damping"]) == ["drift.damping", "initial.mean", "initial.cov"]
    assert names(model, ["drift", "drift.rate"]) == ["drift.rate", "drift.damping"]
    assert names(model, ["likelihood.variance", "diffusion"]) == ["diffusion", "likelihood.variance"]


def test_paths_into_a_network_and_a_callable():
    mlp = gv.Model(gv.MLP(2, key=jax.random.key(0)))
    assert names(mlp, "drift.layers[0]") == ["drift.layers[0][0]", "drift.layers[0][1]"]
    assert len(names(mlp, "drift")) == 4
    partial = gv.Model(jax.tree_util.Partial(lambda rate, x, t: -rate * x, 0.5))
    (path,) = names(partial, "drift")
    assert make_spec(partial, path)[0].kind == "real"


@pytest.mark.parametrize("trainable", ["drift.ratio", ["drift", "noise"], "dri", "likelihood.scale"])
def test_an_unknown_name_lists_those_that_exist(trainable):
    with pytest.raises(ValueError) as error:
        make_spec(van_der_pol(), trainable)
    unknown = trainable if isinstance(trainable, str) else trainable[-1]
    assert repr(unknown) in str(error.value)
    for offered in ["drift", "initial", "likelihood", *PATHS]:
        assert offered in str(error.value).split("it has ")[1].split(", ")


def test_a_stationary_start_has_no_parameters_of_its_own():
    model = gv.Model(gv.OrnsteinUhlenbeck(1.0), initial="stationary")
    with pytest.raises(ValueError, match="no parameter 'initial'"):
        make_spec(model, ["drift", "initial"])


@pytest.mark.parametrize(
    ("diffusion", "kind", "size"), [(2.0, "scalar", 1), ([2.0, 3.0], "diagonal", 2), (SPD, "full", 3)]
)
def test_covariances_keep_the_form_in_which_they_were_given(diffusion, kind, size):
    model = van_der_pol(diffusion=diffusion, cov=diffusion)
    for p in make_spec(model, ["diffusion", "initial.cov"]):
        assert (p.kind, p.size) == (kind, size)
    spec = make_spec(model, "diffusion")
    theta = to_vector(spec, model)
    assert_close(insert(spec, theta, model).diffusion, model.diffusion, "roundtrip")
    moved = np.asarray(insert(spec, theta + 0.3, model).diffusion)
    assert np.linalg.eigvalsh(moved)[0] > 0
    if kind != "full":
        assert moved[0, 1] == 0.0
    if kind == "scalar":
        assert moved[0, 0] == moved[1, 1]


def test_default_constraints_follow_the_parts():
    kinds = {p.path: p.kind for p in make_spec(van_der_pol(variance=SPD), PATHS)}
    assert kinds["drift.rate"] == "positive" and kinds["initial.mean"] == "real" and kinds["emission"] == "real"
    assert kinds["likelihood.variance"] == "full"
    assert {p.kind for p in make_spec(gv.Model(gv.DoubleWell()), "drift")} == {"real"}
    (df, scale) = sorted(make_spec(gv.Model(gv.Benes(), likelihood=gv.likelihoods.StudentT(0.1)), "likelihood"))
    assert df.kind == scale.kind == "positive"


def test_constraints_by_name_the_most_specific_wins():
    spec = make_spec(van_der_pol(), "drift", {"drift": "real", "drift.damping": (0.5, 4.0)})
    assert [p.kind for p in spec] == ["real", (0.5, 4.0)]


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"drift.rate": "negative"}, "unknown constraint 'negative'"),
        ({"drift.rate": (2.0, 1.0)}, "low < high"),
        ({"drift.rate": "full"}, "square matrices"),
        ({"drift.speed": "positive"}, "no parameter 'drift.speed'"),
    ],
)
def test_bad_constraints(constraints, message):
    with pytest.raises(ValueError, match=message):
        make_spec(van_der_pol(), "drift", constraints)


def test_a_start_outside_its_constraint():
    model = gv.Model(gv.DoubleWell(scale=4.0, well=0.0))
    for kind in ("positive", (0.5, 1.0)):
        with pytest.raises(ValueError, match=r"drift.well = .* is not inside its constraint"):
            to_vector(make_spec(model, "drift.well", {"drift.well": kind}), model)


def test_empty_trainable():
    with pytest.raises(ValueError, match="trainable is empty"):
        make_spec(van_der_pol(), [])


bounded = st.floats(-8.0, 8.0)


@given(st.lists(bounded, min_size=1, max_size=4))
def test_real_positive_and_interval_round_trip(free):
    x = np.array(free)
    for kind in ("real", "positive", (-1.0, 3.0)):
        p = Parameter("a", kind, (len(x),), len(x))
        value = np.asarray(constrain(p, x))
        if kind == "positive":
            assert (value > 0).all()
        elif kind != "real":
            assert ((value > -1.0) & (value < 3.0)).all()
        assert_close(unconstrain(p, value), x, "roundtrip", str(kind), size=[1.0, *x])  # zero may stand for one


@given(st.sampled_from([1, 2, 3]), st.data())
def test_matrices_round_trip_and_are_positive_definite(d, data):
    for kind, size in (("scalar", 1), ("diagonal", d), ("full", d * (d + 1) // 2)):
        p = Parameter("Q", kind, (d, d), size)
        x = np.array(data.draw(st.lists(st.floats(-2.0, 2.0), min_size=size, max_size=size)))
        value = np.asarray(constrain(p, x))
        assert value.shape == (d, d) and np.array_equal(value, value.T)
        assert np.linalg.eigvalsh(value)[0] > 0
        assert_close(unconstrain(p, value), x, "roundtrip", kind, size=[1.0, *x])


def test_one_name_and_one_value_for_every_free_coordinate():
    model = van_der_pol(diffusion=[1.0, 2.0], variance=SPD, cov=0.5)
    spec = make_spec(model, ["drift", "diffusion", "initial", "likelihood"])
    theta = to_vector(spec, model)
    got = dict(zip(entries(spec), np.asarray(constrained_entries(spec, theta)), strict=True))
    expected = {
        "drift.rate": 5.0,
        "drift.damping": 2.0,
        "diffusion[0, 0]": 1.0,
        "diffusion[1, 1]": 2.0,
        "initial.mean[0]": 1.0,
        "initial.mean[1]": -1.0,
        "initial.cov": 0.5,
        "likelihood.variance[0, 0]": 1.0,
        "likelihood.variance[1, 0]": 0.3,
        "likelihood.variance[1, 1]": 0.5,
    }
    assert list(got) == list(expected)
    assert_close(np.array(list(got.values())), np.array(list(expected.values())), "roundtrip")


def test_a_prior_sees_the_free_part_of_a_matrix():
    """Of q·I the factor, of a diagonal its entries: zeros that the form fixes have no density."""
    prior = dist.LogNormal(0.5, 0.3)
    for diffusion, free in ((2.0, [2.0]), ([2.0, 3.0], [2.0, 3.0])):
        model = van_der_pol(diffusion=diffusion)
        spec = make_spec(model, ["drift", "diffusion"])
        got = log_prior(spec, to_vector(spec, model), {"diffusion": prior})
        assert_close(got, stats.lognorm(0.3, scale=np.exp(0.5)).logpdf(free).sum(), "exact")


def test_insert_changes_what_is_trainable_and_nothing_else():
    model = van_der_pol()
    spec = make_spec(model, ["drift.rate"])
    changed = insert(spec, to_vector(spec, model) + 1.0, model)
    before, after = leaves_by_path(model), leaves_by_path(changed)
    assert_close(after["drift.rate"], 5.0 * np.e, "roundtrip")
    assert all(after[path] is before[path] for path in PATHS if path != "drift.rate")
    assert list(split(spec, to_vector(spec, model))) == ["drift.rate"]


def test_a_single_entry_is_learnt_and_the_others_stay():
    model = gv.Model(gv.Linear([[-1.0, 0.3], [0.2, -0.8]]), [0.4, 0.9])
    spec = make_spec(model, ["drift.A[0, 1]", "diffusion[1, 1]"])
    assert [(p.path, p.size) for p in spec] == [("drift.A", 1), ("diffusion", 1)]
    theta = to_vector(spec, model)
    assert_close(theta, [0.3, np.log(0.9)], "exact")
    values = split(spec, jnp.asarray([0.5, np.log(2.0)]))
    assert_close(values["drift.A"], [[-1.0, 0.5], [0.2, -0.8]], "exact")
    assert_close(values["diffusion"], np.diag([0.4, 2.0]), "exact")
    assert entries(spec) == ["drift.A[0, 1]", "diffusion[1, 1]"]
    assert_close(constrained_entries(spec, jnp.asarray([0.5, np.log(2.0)])), [0.5, 2.0], "exact")


def test_a_name_and_an_entry_of_it_stand_for_all_of_it():
    model = gv.Model(gv.Linear([[-1.0, 0.3], [0.2, -0.8]]))
    assert make_spec(model, ["drift", "drift.A[0, 1]"]) == make_spec(model, ["drift"])


def test_the_block_of_noise_is_learnt_and_zeros_stay_zero():
    Q = np.zeros((4, 4))
    Q[2:, 2:] = [[0.5, 0.2], [0.2, 0.4]]
    model = gv.Model(gv.ConstantVelocity(2), Q, emission=np.eye(2, 4))
    spec = make_spec(model, "diffusion")
    theta = to_vector(spec, model)
    assert len(theta) == 3 and np.isfinite(theta).all()
    assert entries(spec) == ["diffusion[2, 2]", "diffusion[3, 2]", "diffusion[3, 3]"]
    assert_close(split(spec, jnp.asarray(theta))["diffusion"], Q, "exact")
    moved = np.asarray(split(spec, jnp.asarray(theta) + 0.3)["diffusion"])
    assert (moved[:2] == 0.0).all() and (moved[:, :2] == 0.0).all()
    assert np.linalg.eigvalsh(moved[2:, 2:])[0] > 0.0
    assert_close(constrained_entries(spec, jnp.asarray(theta)), [0.5, 0.2, 0.4], "exact")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("drift.A[0, 2]", r"'drift.A\[0, 2\]' is not an entry of 'drift.A', which has shape \(2, 2\)"),
        ("drift.A[0]", r"not an entry of 'drift.A'"),
        ("diffusion[0, 1]", r"diffusion\[0, 1\] is zero by the constraint 'diagonal'"),
        ("initial.cov[0, 0]", r"with the constraint 'scalar' all change"),
    ],
)
def test_entries_that_cannot_be_learnt(name, message):
    with pytest.raises(ValueError, match=message):
        make_spec(gv.Model(gv.Linear([[-1.0, 0.3], [0.2, -0.8]]), [0.4, 0.9]), name)


def test_single_entries_of_a_covariance_are_not_independent():
    model = gv.Model(gv.OrnsteinUhlenbeck([1.0, 1.0]), [[1.0, 0.2], [0.2, 1.0]])
    with pytest.raises(ValueError, match="it has no independent entries"):
        make_spec(model, "diffusion[0, 1]")
