"""# Ice core: one climate or two?

The water isotopes of the Greenland ice core NGRIP follow the temperature above it. Between 45 000 and 29 000 years
ago it jumped to mild states and back, the Dansgaard-Oeschger events. The drift is a cubic polynomial, whose real
zeros are where the climate may rest; nothing tells it how many there are. It finds one, the cold state: the mild ones
are places where the way back is slow, not places to stay. The state is scalar, so that the posterior can also be had
without a Gaussian approximation, by sums over a grid of states.
"""

import numpy as np

import common
import girsanov as gv
from girsanov.baselines import exact_smoother

out = common.output_folder()
ice = common.table("ngrip").iloc[::-1]
# Time in thousands of years, forwards; the isotope ratio in units of 2 per mille around its middle, -42.
series = gv.TimeSeries(-ice["age"].to_numpy() / 1000.0, (ice["d18O"].to_numpy() + 42.0) / 2.0)

model = gv.Model(
    drift=gv.Polynomial([0.0, 1.0, 0.0, -1.0]),
    diffusion=2.0,
    initial=gv.GaussianState(mean=0.0, cov=1.0),
    likelihood=gv.likelihoods.Gaussian(variance=0.05),
)
fit = gv.learn(model, series, dt=0.05, trainable=["drift", "diffusion", "likelihood"], progress=False)
print(fit.summary())
zeros = np.roots(fit.model.drift.coefficients[::-1].ravel())
print("the drift is zero at", 2 * zeros[np.isreal(zeros)].real.round(2) - 42, "per mille")

exact = exact_smoother(fit.model, series, dt=0.05)
mean, sd = fit.posterior.mean[:, 0], exact.std[:, 0]
common.beside(
    "exact smoother",
    {
        "log evidence": (fit.elbo, exact.log_evidence),
        "mean 38 000 years ago": (
            np.interp(-38.0, fit.posterior.times, mean).item(),
            np.interp(-38.0, exact.times, exact.mean[:, 0]).item(),
        ),
    },
)
print(f"largest difference of the means: {np.max(abs(mean - exact.mean[:, 0]) / sd):.2f} standard deviations")
common.verdict(fit.posterior)

figure = fit.posterior.plot()
figure.axes[0].set(xlabel="thousands of years before 1950 (negative)", ylabel="(δ¹⁸O + 42)/2, per mille")
common.keep(figure, out, "ngrip")
