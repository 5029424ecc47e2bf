"""# A GPS track: where was the receiver while nothing was heard?

Positions of a moving receiver, every fifteen seconds. The velocity is pushed by noise and the position follows it: an
integrated Ornstein-Uhlenbeck process, whose noise is singular and which is therefore solved in continuous time. Two
stretches of two minutes are taken out and predicted. The evidence beside ours is a dense Gaussian density in SciPy,
and the predictions beside ours are straight lines and cubic splines.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.interpolate import CubicSpline, interp1d
from scipy.stats import multivariate_normal

import common
import girsanov as gv

out = common.output_folder()
track = common.table("gps")
minutes, places = track["minutes"].to_numpy(), track[["x", "y"]].to_numpy()
silent = ((minutes > 6.0) & (minutes < 8.0)) | ((minutes > 21.0) & (minutes < 23.0))
# Both coordinates move by the same rules, independently: a panel of two series, each with a position and a velocity.
heard = gv.Panel({k: gv.TimeSeries(minutes[~silent], places[~silent, i]) for i, k in enumerate("xy")})
model = gv.Model(
    drift=gv.IntegratedOU(decay=0.5),
    diffusion=[0.0, 0.5],  # noise in the velocity only
    initial=gv.GaussianState(0.0, [0.01, 0.01]),
    emission=[[1.0, 0.0]],
    likelihood=gv.likelihoods.Gaussian(0.001),
)
fit = gv.learn(model, heard, dt=0.25, span=(0.0, 26.0), trainable=["drift", "diffusion"], progress=False)
decay, q = fit.parameters["drift.decay"].item(), fit.parameters["diffusion"][1, 1].item()
print(f"{fit.status}: decay {decay:.3f}, noise {q:.3f}")


def covariance(s, t, decay, q, first=0.01):
    """Cov(x(s), x(t)) of one coordinate: of its first place and velocity, and the integral over the noise."""
    m = np.minimum(s, t)

    def fading(u):
        return (np.exp(-decay * (u - m)) - np.exp(-decay * u)) / decay

    both = (np.exp(-decay * (s + t - 2 * m)) - np.exp(-decay * (s + t))) / (2 * decay)
    start = first * (1 + (1 - np.exp(-decay * s)) * (1 - np.exp(-decay * t)) / decay**2)
    return start + q / decay**2 * (m - fading(s) - fading(t) + both)


t = minutes[~silent]
dense = multivariate_normal(np.zeros(len(t)), covariance(t[:, None], t, decay, q) + 0.001 * np.eye(len(t)))
common.beside("SciPy, dense", {"log evidence": (fit.elbo, sum(dense.logpdf(places[~silent, i]) for i in range(2)))})


def miss(predicted):
    """Root mean square distance to where the receiver was, in the silent stretches."""
    return float(np.sqrt(np.mean(np.sum((predicted - places[silent]) ** 2, axis=1))))


predicted = [fit.posteriors[k].predict(minutes[silent]) for k in "xy"]
ours = np.concatenate([p.mean for p in predicted], axis=1)
common.beside("straight line", {"miss": (miss(ours), miss(interp1d(t, places[~silent], axis=0)(minutes[silent])))})
common.beside("cubic spline", {"miss": (miss(ours), miss(CubicSpline(t, places[~silent])(minutes[silent])))})
band = 1.96 * np.sqrt(np.concatenate([p.cov[:, 0] for p in predicted], axis=1))
common.beside("aim", {"share within the 95 % band": (float(np.mean(abs(places[silent] - ours) < band)), 0.95)})
common.verdict(fit.posteriors["x"])

figure, axes = plt.subplots()
axes.plot(*places[~silent].T, ".", label="heard")
axes.plot(*places[silent].T, "x", label="not heard")
across, up = (fit.posteriors[k].sample(jax.random.key(i), 20)[:, :, 0] for i, k in enumerate("xy"))
for i in range(20):
    axes.plot(across[i], up[i], color="grey", alpha=0.3, linewidth=0.7, zorder=0)
axes.set(xlabel="x", ylabel="y", aspect="equal", title="Twenty paths from the posterior")
axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
common.keep(figure, out, "gps")
