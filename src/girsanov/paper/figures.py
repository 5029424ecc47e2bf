"""The figures of the paper. Each is a task of its own, which computes it and writes it as PNG and PDF."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from girsanov import baselines
from girsanov.evaluation import Task
from girsanov.inference.cvi_dp import CVIDP
from girsanov.inference.vdp import VDP
from girsanov.learning.learn import learn
from girsanov.model.simulate import simulate
from girsanov.paper.data import Fold, inference_model, learning_model, load_fold, load_real
from girsanov.paper.settings import experiment
from girsanov.paper.tasks import learn_real, stated_omega
from girsanov.result.infer import infer

OURS, OTHER, TRUTH = "#1f5fa8", "#c0562b", "0.55"
_LOWEST = -1e6  # lowest value on the axis of a panel of bounds, in nats
_FUNCTION = "girsanov.paper.figures:draw"


def tasks(options: dict[str, Any], folder: Path) -> list[Task]:
    """Return the tasks that draw the figures."""
    common = {"data": options["data"], "out": str(folder.resolve()), "changes": options["changes"]}
    dt = options["steps"][0]
    out = [
        Task(f"figure-{p}", _FUNCTION, {"kind": "process", "process": p, "dt": dt, **common})
        for p in options["processes"]
    ]
    kinds = ["evidence", "learning", "neural_sde"] if "double_well" in options["processes"] else []
    out += [Task(f"figure-{kind}", _FUNCTION, {"kind": kind, "dt": dt, **common}) for kind in kinds]
    return out + [Task(f"figure-{kind}", _FUNCTION, {"kind": kind, "dt": dt, **common}) for kind in ("finance", "gps")]


def draw(**settings: Any) -> dict[str, Any]:
    """Draw one figure; return its caption and the paths of its files, relative to the folder of the reproduction."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, caption = _KINDS[settings["kind"]](settings)
    name = settings.get("process", settings["kind"])
    folder = Path(settings["out"]) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None, "Producer": None})):
        figure.savefig(folder / f"{name}.{suffix}", dpi=130, metadata=metadata)
    plt.close(figure)
    return {"caption": caption, "png": f"figures/{name}.png", "pdf": f"figures/{name}.pdf"}


def _panels(n: int, width: float = 4.2):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, n, figsize=(width * n, 3.0), layout="constrained", squeeze=False)
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes[0]


def _band(ax: Any, estimate: Any, colour: str, label: str) -> None:
    """Plot the mean and two standard deviations of the first coordinate."""
    t, m, s = estimate.times, estimate.mean[:, 0], estimate.std[:, 0]
    ax.plot(t, m, color=colour, lw=1.2, label=label)
    for side in (-2.0, 2.0):
        ax.plot(t, m + side * s, color=colour, lw=0.6)


def _first_fold(settings: dict[str, Any], process: str) -> tuple[Fold, dict[str, Any]]:
    changes = settings["changes"].get(process, {})
    return load_fold(settings["data"], process, 0, changes), changes


def _legend(ax: Any) -> None:
    """Draw the legend above the data, for which the panel is extended at its top."""
    lines = len(ax.get_legend_handles_labels()[1])
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.09 * lines * (high - low))
    ax.legend(frameon=False, fontsize=7, loc="upper left")


def _process(settings: dict[str, Any]) -> tuple[Any, str]:
    """Draw the figure of one process: draws from the prior, posteriors over the truth, bounds against iterations."""
    process, dt = settings["process"], settings["dt"]
    fold, changes = _first_fold(settings, process)
    model = inference_model(process, fold, changes)
    how = experiment(process, changes)
    figure, (left, middle, right) = _panels(3)
    times = np.linspace(*fold.span, 400)[1:]
    for k in range(20):
        path = simulate(model, times, key=jax.random.key(k), start=fold.span[0], dt=0.01).path
        left.plot(times, np.asarray(path)[-len(times) :, 0], color=TRUTH, lw=0.5)
    left.set(title="draws from the prior", xlabel="time", ylabel=r"$x$" if model.dim == 1 else r"$x_1$")

    ours = infer(model, fold.train, dt=dt, span=fold.span, progress=False)
    mirror = CVIDP(rho=float(how["inference"]["rho"]), safeguard=False)
    paper_step = infer(model, fold.train, dt=dt, span=fold.span, method=mirror, progress=False)
    limit = int(how["inference"]["vdp_iterations"])
    vdp = infer(model, fold.train, dt=dt, span=fold.span, method=VDP(max_iterations=limit), progress=False)
    omega = stated_omega(process, dt, changes)
    plain = VDP(omega, solver="euler", safeguard=False, begin="prior", max_iterations=limit)
    published = infer(model, fold.train, dt=dt, span=fold.span, method=plain, progress=False)

    evidence = _truth(middle, model, fold, dt, ours)
    _band(middle, vdp, OTHER, "VDP")
    _band(middle, ours, OURS, "CVI-DP")
    middle.plot(fold.train.times, fold.train.values[:, 0], "k.", ms=4, label="observations")
    middle.set(title="posterior, mean ± 2 sd", xlabel="time")
    _legend(middle)

    for post, style, label in (
        (ours, "-", "CVI-DP"), (paper_step, "--", f"CVI-DP, plain, ρ = {how['inference']['rho']:g}"),
    ):  # fmt: skip
        right.plot(np.arange(len(post.history)) + 1, post.history.elbo, style, color=OURS, label=label)
    for post, style, label in ((vdp, "-", "VDP, safeguarded"), (published, "--", f"VDP, ω = {omega:g}")):
        right.plot(np.arange(len(post.history)) + 1, post.history.elbo, style, color=OTHER, label=label)
    if evidence is not None:
        right.axhline(evidence, color="k", lw=0.8, label="exact evidence" if model.dim == 1 else "evidence, particles")
    lowest = min(float(np.min(p.history.elbo)) for p in (ours, paper_step, vdp, published))
    right.set(title="evidence bound (nats)", xlabel="iteration", xscale="log", yscale="symlog")
    right.set_ylim(max(1.5 * lowest, _LOWEST), ours.elbo + abs(ours.elbo))  # a run that diverges is cut off
    right.legend(frameon=False, fontsize=7)
    return figure, f"{how['title']}, fold 0, Δt = {dt:g}: prior draws, posteriors over the truth, and convergence."


def _truth(ax: Any, model, fold, dt: float, guide: Any) -> float | None:
    """Plot the exact density if the state is scalar, or else draws of guided particles; return the log evidence."""
    if model.dim == 1:
        exact = baselines.exact_smoother(model, fold.train, dt, fold.span)
        low, high = exact.mean - 5 * exact.std, exact.mean + 5 * exact.std
        levels = np.linspace(low.min(), high.max(), 300)
        rows = [np.interp(levels, x, p, 0.0, 0.0) for x, p in zip(exact.points, exact.density, strict=True)]
        keep = slice(None, None, max(1, len(rows) // 800))
        image = np.sqrt(np.stack(rows)[keep].T)
        ax.pcolormesh(exact.times[keep], levels, image, cmap="Greys", shading="nearest", rasterized=True)
        return exact.log_evidence
    draws = baselines.particle_smoother(
        model, fold.train, dt, fold.span, key=jax.random.key(0), samples=200, chains=4, burn_in=20, guided=guide,
        progress=False,
    )  # fmt: skip
    for path in draws.samples[::5]:
        ax.plot(draws.times, path[:, 0], color=TRUTH, lw=0.3)
    return draws.log_evidence


def _evidence(settings: dict[str, Any]) -> tuple[Any, str]:
    """Draw the log evidence of the double well against θ, exactly and by the bounds of both methods at two dt."""
    fold, changes = _first_fold(settings, "double_well")
    thetas = np.linspace(0.4, 1.6, 13)
    figure, (left, right) = _panels(2)  # VDP's bound is hundreds of nats lower and has its own axis
    for dt, style in ((0.01, "-"), (0.005, "--")):
        curves: dict[str, list[float]] = {"exact": [], "CVI-DP": [], "VDP": []}
        for theta in thetas:
            model = inference_model("double_well", fold, changes | {"inference.parameters.well": float(theta)})
            curves["exact"].append(baselines.exact_smoother(model, fold.train, dt, fold.span).log_evidence)
            for name, method in (("CVI-DP", None), ("VDP", VDP())):
                post = infer(model, fold.train, dt=dt, span=fold.span, method=method, progress=False)
                curves[name].append(post.elbo)
        for (name, values), colour in zip(curves.items(), ("k", OURS, OTHER), strict=True):
            panel = right if name == "VDP" else left
            panel.plot(thetas, values, style, color=colour, label=f"{name}, Δt = {dt:g}")
    for panel in (left, right):
        panel.set(xlabel=r"$\theta_1$", ylabel="log evidence or bound (nats)")
        _legend(panel)
    return figure, "Double well, fold 0: log evidence and its bounds against the parameter θ₁; VDP's has its own axis."


def _learning(settings: dict[str, Any]) -> tuple[Any, str]:
    fold, changes = _first_fold(settings, "double_well")
    model, trainable = learning_model("double_well", fold, changes)
    figure, (left, right) = _panels(2)
    runs = {
        "CVI-DP, modified M-step": (OURS, "-", {}),
        "CVI-DP, standard M-step": (OURS, "--", {"objective": "standard"}),
        "VDP": (OTHER, "-", {"method": VDP()}),
    }
    for label, (colour, style, options) in runs.items():
        fit = learn(
            model, fold.train, dt=settings["dt"], span=fold.span, trainable=trainable, standard_errors=False,
            check=False, progress=False, **options,
        )  # fmt: skip
        values = next(iter(fit.history.parameters.values())).reshape(-1)
        left.plot(np.arange(len(values)), values, style, color=colour, marker=".", label=label)
        right.plot(np.arange(len(values)), fit.history.elbo, style, color=colour, marker=".", label=label)
    left.set(xlabel="M-steps", ylabel=r"$\theta_1$")
    right.set(xlabel="M-steps", ylabel="evidence bound (nats)")
    left.legend(frameon=False, fontsize=7)
    return figure, "Double well, fold 0: speed of learning θ₁ from 0."


def _neural_sde(settings: dict[str, Any]) -> tuple[Any, str]:
    fold, changes = _first_fold(settings, "double_well")
    model = inference_model("double_well", fold, changes)
    dt = max(settings["dt"], 0.02)  # its training simulates every step, so a fine grid would take hours
    ours = infer(model, fold.train, dt=dt, span=fold.span, progress=False)
    figure, axes = _panels(3)
    network, done = None, 0
    for ax, until in zip(axes, (100, 400, 1200), strict=True):
        fit = baselines.neural_sde(
            model, fold.train, dt, fold.span, key=jax.random.key(done), iterations=until - done, start=network,
            learning_rate=1e-2 * 0.999**done, samples=200, progress=False,
        )  # fmt: skip
        network, done = fit.network, until
        _truth(ax, model, fold, dt, ours)
        _band(ax, fit, "k", f"neural SDE, {until} iterations")
        _band(ax, ours, OURS, "CVI-DP")
        ax.set(xlabel="time", title=f"bound {fit.elbo:.1f} (CVI-DP {ours.elbo:.1f}) nats")
        _legend(ax)
    return figure, f"Double well, fold 0, Δt = {dt:g}: a neural SDE comes nearer to CVI-DP with its iterations."


def _finance(settings: dict[str, Any]) -> tuple[Any, str]:
    changes = settings["changes"].get("finance", {})
    how = experiment("finance", changes)
    fold = load_real(settings["data"], "finance", how["folds"] - 1, changes)
    fit = learn_real("finance", "cvi_dp_nn", fold, how["folds"] - 1, changes)
    paths = int(how["figure"]["paths"])
    last = float(fit.posterior.times[-1])
    years = 2.5 * int(how["figure"]["years"])  # a year of trading is about 2.5 units of time
    ahead = np.linspace(last, last + years, 200)[1:]
    future = fit.posterior.forecast(ahead, key=jax.random.key(0), n=paths)
    figure, (ax,) = _panels(1, 7.0)
    for path in np.asarray(future)[:, :, 0]:
        ax.plot(ahead, path, color=TRUTH, lw=0.4)
    _band(ax, fit.posterior, OURS, "CVI-DP, network drift")
    ax.plot(fold.test.times, fold.test.values[:, 0], ".", ms=1.5, color=OTHER, label="held out")
    ax.set(xlabel=f"time ({how['model']['time_unit']})", ylabel="log price")
    ax.legend(frameon=False, fontsize=7, markerscale=4)
    return figure, "Finance: posterior with a learnt network drift, the last bin held out, and simulated futures."


def _gps(settings: dict[str, Any]) -> tuple[Any, str]:
    changes = settings["changes"].get("gps", {})
    fold = load_real(settings["data"], "gps", 0, changes)
    fits = [learn_real("gps", "cvi_dp_nn", fold.column(i), 0, changes) for i in range(2)]
    figure, (ax,) = _panels(1, 4.5)
    x, y = (f.posterior.mean[:, 0] for f in fits)
    ax.plot(x, y, color=OURS, lw=1.0, label="posterior mean")
    ax.plot(fold.train.values[:, 0], fold.train.values[:, 1], ".", ms=1, color="k", label="observations")
    ax.plot(fold.test.values[:, 0], fold.test.values[:, 1], ".", ms=2, color=OTHER, label="held out")
    ax.set(xlabel="first coordinate", ylabel="second coordinate")
    ax.legend(frameon=False, fontsize=7, markerscale=4)
    return figure, "GPS, fold 0: the track inferred with a learnt network drift."


_KINDS = {
    "process": _process, "evidence": _evidence, "learning": _learning, "neural_sde": _neural_sde,
    "finance": _finance, "gps": _gps,
}  # fmt: skip
