"""Figures from what has the names of an estimate, of a fit, or of residuals.

`style` has the colours and the marks that all figures share; `paths` draws states and outputs over time, `where` what
`diagnose` finds along the time axis, `panels` many series, `fields` the drift, `fits` what learning did, and `checks`
residuals. Figures of one panel return its axes, those of several the figure, whose `axes` are in the order stated.
"""

from girsanov.plotting.checks import plot_filtered, plot_residuals
from girsanov.plotting.fields import plot_drift, plot_phase
from girsanov.plotting.fits import plot_fit, plot_profile
from girsanov.plotting.panels import plot_panel
from girsanov.plotting.paths import plot_estimate, plot_forecast
from girsanov.plotting.where import plot_where

__all__ = [
    "plot_drift", "plot_estimate", "plot_filtered", "plot_fit", "plot_forecast", "plot_panel", "plot_phase",
    "plot_profile", "plot_residuals", "plot_where",
]  # fmt: skip
