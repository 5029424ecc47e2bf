"""# Sleep study: eighteen people, ten days

Reaction times of people who slept three hours a night. Each person has a speed at the start and a slowing of their
own, both drawn from normal laws that are learnt from all of them: a mixed model, which statsmodels fits as well. As a
diffusion it has next to no noise; with more of it, a person's good and bad days would last.
"""

import numpy as np
import statsmodels.formula.api as smf
from statsmodels.regression.mixed_linear_model import MixedLMParams

import common
import girsanov as gv

out = common.output_folder()
frame = common.table("sleepstudy")
panel = gv.Panel.from_dataframe(frame, id="subject", time="days", values=["reaction"])

# dx = b dt, with next to no noise: a straight line for each person, from x(0) with the slope b.
line = gv.Model(
    drift=gv.Linear(0.0, 10.0),
    diffusion=0.01,
    initial=gv.GaussianState(250.0, 0.01),
    likelihood=gv.likelihoods.Gaussian(900.0),
)
fit = gv.learn(
    line, panel, dt=1.0, span=(0.0, 9.0), trainable=["likelihood"], random=["initial.mean", "drift.b"], progress=False
)
print(fit.summary())

# The same by statsmodels: maximum likelihood, with the start and the slope of a person independent.
mixed = smf.mixedlm("reaction ~ days", frame, groups="subject", re_formula="~days")
free = MixedLMParams.from_components(np.ones(2), np.eye(2))
theirs = mixed.fit(reml=False, free=free)
start, slope = fit.effects["initial.mean"], fit.effects["drift.b"]
variances = theirs.cov_re.to_numpy().diagonal()
common.beside(
    "statsmodels",
    {
        "mean at the start, ms": (start.mean.item(), theirs.fe_params["Intercept"]),
        "mean slowing, ms a day": (slope.mean.item(), theirs.fe_params["days"]),
        "sd between people, start": (start.variance.item() ** 0.5, variances[0] ** 0.5),
        "sd between people, slowing": (slope.variance.item() ** 0.5, variances[1] ** 0.5),
        "sd of a measurement": (fit.parameters["likelihood.variance"].item() ** 0.5, theirs.scale**0.5),
        "log evidence": (fit.elbo, theirs.llf),
    },
)
common.verdict(fit.posteriors["308"])

figure = fit.posteriors.plot()
common.keep(figure, out, "sleep")
