"""# A GPS track: where was the receiver while nothing was heard?

Positions of a moving receiver, every fifteen seconds. The velocity is pushed by noise and the position follows it: an
integrated Ornstein-Uhlenbeck process, whose noise is singular and which is therefore solved in continuous time. Two
stretches of two minutes are taken out and predicted. The covariance of such a process is known, so that SciPy can give
the evidence from a dense Gaussian density, and also the two parameters at which it is largest. The predictions beside
ours are straight lines and cubic splines.
"""

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.interpolate import CubicSpline, interp1d
from scipy.optimize import minimize
from scipy.stats import multivariate_normal

import common
import girsanov as gv

out = common.output_folder()
track = common.table("gps")
minutes, places = track["minutes"].to_numpy(), track[["x", "y"]].to_numpy()
silent = ((minutes > 6.0) & (minutes < 8.0)) | ((minutes > 21.0) & (minutes < 23.0))
t, heard = minutes[~silent], places[~silent]


def covariance(s, t, decay, q, first=0.01):
    """Cov(x(s), x(t)) of one coordinate: of its first place and velocity, and the integral over the noise."""
    m = np.minimum(s, t)

    def fading(u):
        return (np.exp(-decay * (u - m)) - np.exp(-decay * u)) / decay

    both = (np.exp(-decay * (s + t - 2 * m)) - np.exp(-decay * (s + t))) / (2 * decay)
    start = first * (1 + (1 - np.exp(-decay * s)) * (1 - np.exp(-decay * t)) / decay**2)
    return start + q / decay**2 * (m - fading(s) - fading(t) + both)


def evidence(logs):
    """Return the log density of both coordinates, which move independently by the same rules."""
    dense = covariance(t[:, None], t, *np.exp(logs)) + 0.001 * np.eye(len(t))
    return multivariate_normal(np.zeros(len(t)), dense).logpdf(heard.T).sum()


best = minimize(lambda logs: -evidence(logs), [0.0, 0.0], method="Nelder-Mead")
decay, q = np.exp(best.x)
print(f"decay of the velocity {decay:.3f} a minute, noise {q:.3f}")

model = gv.Model(
    drift=gv.IntegratedOU(decay),
    diffusion=[0.0, q],  # noise in the velocity only
    initial=gv.GaussianState(0.0, [0.01, 0.01]),
    emission=[[1.0, 0.0]],  # the position is seen
    likelihood=gv.likelihoods.Gaussian(0.001),
)
posts = [gv.infer(model, gv.TimeSeries(t, heard[:, k]), dt=0.25, span=(0.0, 26.0)) for k in range(2)]
common.beside("SciPy, dense", {"log evidence": (sum(post.elbo for post in posts), -best.fun)})


def miss(predicted):
    """Root mean square distance to where the receiver was, in the silent stretches."""
    return float(np.sqrt(np.mean(np.sum((predicted - places[silent]) ** 2, axis=1))))


predicted = [post.predict(minutes[silent]) for post in posts]
ours = np.concatenate([p.mean for p in predicted], axis=1)
common.beside("straight line", {"miss": (miss(ours), miss(interp1d(t, heard, axis=0)(minutes[silent])))})
common.beside("cubic spline", {"miss": (miss(ours), miss(CubicSpline(t, heard)(minutes[silent])))})
band = 1.96 * np.sqrt(np.concatenate([p.cov[:, 0] for p in predicted], axis=1))
common.beside("aim", {"share within the 95 % band": (float(np.mean(abs(places[silent] - ours) < band)), 0.95)})
common.verdict(posts[0])

figure, axes = plt.subplots()
axes.plot(*heard.T, ".", label="heard")
axes.plot(*places[silent].T, "x", label="not heard")
across, up = (post.sample(jax.random.key(k), 20)[:, :, 0] for k, post in enumerate(posts))
for i in range(20):
    axes.plot(across[i], up[i], color="grey", alpha=0.3, linewidth=0.7, zorder=0)
axes.set(xlabel="x", ylabel="y", aspect="equal", title="Twenty paths from the posterior")
axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
common.keep(figure, out, "gps")
