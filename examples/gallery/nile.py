"""# The Nile: a level that wanders

The yearly flow of the Nile at Aswan, 1871 to 1970, is the standard example of a level that wanders and is seen with
noise. As a diffusion: dx = √Q dβ, y = x + noise. For such a linear model the bound is the evidence, so the two
variances are the maximum-likelihood ones, which statsmodels finds by a Kalman filter of its own, and which Durbin and
Koopman (2012) give as 15099 and 1469.1.
"""

import statsmodels.api as sm

import common
import girsanov as gv

out = common.output_folder()
flow = sm.datasets.nile.load_pandas().data["volume"].to_numpy()
series = gv.TimeSeries(range(1871, 1971), flow)

# A drift of zero, and a first state about which nothing is known. The variances are starting values.
model = gv.Model(
    drift=gv.Linear(0.0),
    diffusion=1000.0,
    initial=gv.GaussianState(mean=1000.0, cov=1e7),
    likelihood=gv.likelihoods.Gaussian(variance=10_000.0),
)
# One step a year is exact here: without a drift, Euler's steps have no error.
fit = gv.learn(model, series, dt=1.0, trainable=["diffusion", "likelihood"], progress=False)
print(fit.summary())

# statsmodels' local level model, with the same first state.
level = sm.tsa.UnobservedComponents(flow, "local level")
level.ssm.initialize_known([1000.0], [[1e7]])
level.loglikelihood_burn = 0
theirs = level.fit(level.fit(disp=0).params, method="nm", disp=0, xtol=1e-8, ftol=1e-10, maxiter=1000)
common.beside(
    "statsmodels",
    {
        "variance of the noise": (fit.parameters["likelihood.variance"].item(), theirs.params[0]),
        "variance of a year's change": (fit.parameters["diffusion"].item(), theirs.params[1]),
        "log evidence": (fit.elbo, theirs.llf),
        "level in 1898": (fit.posterior.mean[27, 0].item(), theirs.smoothed_state[0, 27]),
        "level in 1899": (fit.posterior.mean[28, 0].item(), theirs.smoothed_state[0, 28]),
    },
)
common.verdict(fit.posterior)

figure = fit.posterior.plot()
figure.axes[0].set(xlabel="year; the dam at Aswan was begun in 1899", ylabel="flow, 10⁸ m³")
common.keep(figure, out, "nile")
