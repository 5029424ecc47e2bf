"""# Lynx and hare: predator, prey and chance

The Hudson's Bay Company counted the pelts that trappers brought in. Lotka and Volterra's equations with noise that
grows with the population, stated as text. The rates beside ours are those of a study of the same data and years with
Stan (B. Carpenter, 2018), whose equations have no noise: there all that the cycle does not explain is an error of
measurement.
"""

import numpy as np

import common
import girsanov as gv

MODEL = """
[states.hare]
drift = "hare * (birth - eaten * lynx)"
noise = "s * hare"
start = 30
start_sd = 10

[states.lynx]
drift = "lynx * (food * hare - death)"
noise = "s * lynx"
start = 5
start_sd = 3

[outputs.hare_pelts]
measures = "hare"
distribution = "lognormal"
sd = "error"

[outputs.lynx_pelts]
measures = "lynx"
distribution = "lognormal"
sd = "error"

[parameters]
birth = {start = 0.5, low = 0, unit = "1/year"}
eaten = {start = 0.03, low = 0}
food = {start = 0.03, low = 0}
death = {start = 0.8, low = 0, unit = "1/year"}
s = {start = 0.2, low = 0}
error = {start = 0.1, low = 0, fixed = true}
"""

out = common.output_folder()
pelts = common.table("lynx_hare")
series = gv.TimeSeries(pelts["year"], pelts[["hare", "lynx"]])  # thousands

# Errors of counting are fixed at ten per cent: twenty-one years cannot tell them from the noise of the populations.
model = gv.Model.from_equations(MODEL)
fit = gv.learn(model, series, dt=0.1, progress=False)
print(fit.summary())

rates = {name: fit.model.equations.values[name] for name in ("birth", "eaten", "food", "death")}
stan = {"birth": 0.55, "eaten": 0.028, "food": 0.024, "death": 0.80}
common.beside("Stan, without noise", {name: (float(rates[name]), stan[name]) for name in rates})
# Small cycles around the balance of both take 2π/√(birth · death) years.
period = 2 * np.pi / np.sqrt(rates["birth"] * rates["death"])
hare, year = pelts["hare"], pelts["year"]
peaks = [year[part.idxmax()] for part in (hare[year < 1910], hare[year >= 1910])]
common.beside("data", {"years from peak to peak": (float(period), peaks[1] - peaks[0])})
common.verdict(fit.posterior)

figure = fit.posterior.plot()
for axes, name in zip(figure.axes, ("hare", "lynx"), strict=False):
    axes.set(ylabel=f"{name}, thousands")
figure.axes[-1].set_xlabel("year")
common.keep(figure, out, "lynx_hare")
