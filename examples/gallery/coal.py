"""# Coal-mining disasters: when did the pits become safer?

Explosions in British coal mines that killed ten or more, 1851 to 1962, counted by year. The log of their rate is a
diffusion, and each count is Poisson: a Cox process. Beside it stands the other classical model of these data, a rate
that changes once: its date and its two rates follow from sums that NumPy does exactly.
"""

import numpy as np
from scipy.special import gammaln, logsumexp

import common
import girsanov as gv

out = common.output_folder()
dates = common.table("coal")["date"].to_numpy()
counts, edges = np.histogram(dates, bins=np.arange(1851, 1964))
series = gv.TimeSeries(edges[:-1] + 0.5, counts)  # a year's count stands at its middle

model = gv.Model(
    drift=gv.OrnsteinUhlenbeck(decay=0.05, mean=0.5),
    diffusion=0.05,
    initial="stationary",
    likelihood=gv.likelihoods.Poisson(),
)
fit = gv.learn(model, series, dt=0.25, trainable=["drift", "diffusion"], progress=False)
print(fit.summary())

# One change: with the prior Gamma(1, 1) both rates integrate out, and each year has its posterior probability.
ahead = np.cumsum(counts)[:-1]  # disasters before the change, for a change at the end of each year
years = np.arange(1, len(counts))
behind, rest = counts.sum() - ahead, len(counts) - years
log_p = gammaln(1 + ahead) - (1 + ahead) * np.log(1 + years) + gammaln(1 + behind) - (1 + behind) * np.log(1 + rest)
p = np.exp(log_p - logsumexp(log_p))
before, after = (p * (1 + ahead) / (1 + years)).sum(), (p * (1 + behind) / (1 + rest)).sum()

# The rate is exp(x), and a Gaussian x gives it a log-normal law, with this mean.
x = fit.posterior.marginals(series.times)
rate = np.exp(x.mean[:, 0] + x.cov[:, 0, 0] / 2)
# "Lower" begins where our rate is last halfway between the two, and where the change is most probable.
middle = np.sqrt(before * after)
common.beside(
    "one change, exact",
    {
        "disasters a year, 1851 to 1885": (rate[:35].mean(), before),
        "disasters a year, 1895 to 1962": (rate[44:].mean(), after),
        "first year of the lower rate": (
            float(np.ceil(series.times[rate > middle].max())),
            float(edges[1 + p.argmax()]),
        ),
    },
)
common.verdict(fit.posterior)

figure = fit.posterior.plot()
figure.axes[0].set(xlabel="", ylabel="log of the rate a year")
figure.axes[-1].set(xlabel="year", ylabel="disasters")
common.keep(figure, out, "coal")
