"""# Carbon dioxide: growth, seasons, and what is left

Carbon dioxide on Mauna Loa, monthly means of 1958 to 2001. The plants take it up and give it back with the seasons,
so the drift has a yearly and a half-yearly wave, and a growth that itself grows. This is a drift of one's own: a
module with named parameters. The last five years are held out. statsmodels has the same model as a random walk with
regressors.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import statsmodels.api as sm

import common
import girsanov as gv

out = common.output_folder()
monthly = sm.datasets.co2.load_pandas().data["co2"].resample("MS").mean()
times = np.arange(len(monthly)) / 12.0  # years from the first month, March 1958
series = gv.TimeSeries(times, monthly.to_numpy())  # a month without measurement is NaN, which means missing
known, later = series.subset(times < 38.8), series.subset(times >= 38.8)


class Air(eqx.Module):
    """What is emitted and what the plants breathe, ppm a year."""

    growth: float
    increase: float
    waves: jnp.ndarray

    def __call__(self, x, t):
        """Return the rate of change; it does not depend on the level x."""
        year = 2 * jnp.pi * t
        seasons = jnp.stack([jnp.cos(year), jnp.sin(year), jnp.cos(2 * year), jnp.sin(2 * year)])
        return (self.growth + self.increase * t + seasons @ self.waves) * jnp.ones_like(x)


model = gv.Model(
    drift=Air(1.0, 0.01, jnp.zeros(4)),
    diffusion=1.0,
    initial=gv.GaussianState(mean=316.0, cov=100.0),
    likelihood=gv.likelihoods.Gaussian(variance=0.1),
)
fit = gv.learn(model, known, grid=times, trainable=["drift", "diffusion", "likelihood"], progress=False)
print(fit.summary())

# The sums of the steps of this drift are t, t² and waves again, so that regressors say the same.
year = 2 * np.pi * times
waves = [np.cos(year), np.sin(year), np.cos(2 * year), np.sin(2 * year)]
regressors = np.stack([times, times**2, *waves], axis=1)
first = len(known.times)
walk = sm.tsa.UnobservedComponents(known.values[:, 0], "local level", exog=regressors[:first])
theirs = walk.fit(disp=0, method="powell", maxiter=200)
ours = fit.posterior.predict(later.times).mean[:, 0]
forecast = theirs.forecast(len(later.times), exog=regressors[first:])


def miss(predicted):
    """Root mean square error of the held-out years."""
    return float(np.sqrt(np.nanmean((predicted - later.values[:, 0]) ** 2)))


common.beside(
    "statsmodels",
    {
        "sd of a year's wandering, ppm": (fit.parameters["diffusion"].item() ** 0.5, (12 * theirs.params[1]) ** 0.5),
        "increase of the growth, ppm a year²": (fit.parameters["drift.increase"].item(), 2 * theirs.params[3]),
        "miss of the last five years, ppm": (miss(ours), miss(forecast)),
        "December 2001, ppm": (ours[-1].item(), float(forecast[-1])),
    },
)
common.verdict(fit.posterior)

figure = fit.posterior.plot(test=later)
figure.axes[0].set(xlabel="years from March 1958", ylabel="CO₂, ppm")
common.keep(figure, out, "co2")
