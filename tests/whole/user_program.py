"""A user's program, which pyright checks in strict mode against the installed package; it is not run."""

from collections.abc import Mapping
from typing import Any, assert_type

import jax
import numpy as np

import girsanov as gv
from girsanov import baselines
from girsanov.result.diagnosis import Diagnosis
from girsanov.result.refined import Refined

key = jax.random.key(0)
series = gv.TimeSeries(np.arange(1.0, 5.0), [0.1, 0.2, 0.3, 0.4])
panel = gv.Panel({"a": series, "b": series})
model = gv.Model(
    drift=gv.OrnsteinUhlenbeck(1.0) + gv.Sine(2.0),
    diffusion=gv.diffusions.Proportional(0.2),
    initial=gv.GaussianState(1.0, 0.1),
    likelihood=gv.likelihoods.Gaussian(0.1),
)
assert_type(model, gv.Model)
assert_type(gv.Model.from_equations("model.toml"), gv.Model)

# A series gives a posterior and a fit, a panel those of panels.
post = gv.infer(model, series, dt=0.5, span=(0.0, 5.0), method=gv.CVIDP())
assert_type(post, gv.Posterior)
assert_type(gv.infer(model, panel, dt=0.5), gv.PanelPosterior)
assert_type(gv.infer(model, panel, dt=0.5)["a"], gv.Posterior)
fit = gv.learn(model, series, dt=0.5, trainable=["drift"])
assert_type(fit, gv.Fit)
assert_type(fit.posterior, gv.Posterior)
assert_type(fit.model, gv.Model)
assert_type(fit.standard_errors, dict[str, float] | None)
shared = gv.learn(model, panel, dt=0.5, trainable=["drift"], individual=["initial.mean"])
assert_type(shared, gv.PanelFit)
assert_type(shared.posteriors, gv.PanelPosterior)
assert_type(panel["a"], gv.TimeSeries)

assert_type(post.elbo, float)
assert_type(post.status, str)
assert_type(post.mean, "np.ndarray[tuple[Any, ...], np.dtype[Any]]")
assert_type(post.marginals([1.5]).cov, "np.ndarray[tuple[Any, ...], np.dtype[Any]]")
assert_type(post.diagnose(key=key), Diagnosis)
assert_type(post.diagnose(key=key).verdict, str)
assert_type(post.refine(key=key, seconds=10.0), Refined)
assert_type(post.nlpd(series), float)
assert_type(gv.simulate(model, [1.0, 2.0], key=key).series, gv.TimeSeries)
assert_type(gv.solve(model, gv.prepare(model, series, dt=0.5)), gv.Solution)
assert_type(baselines.exact_smoother(model, series, dt=0.1).log_evidence, float)

names: Mapping[str, Any] = fit.parameters
paths = [path.name for path in [post.save("run.gv")]]
