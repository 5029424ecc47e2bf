"""Pages of HTML that need no other file: `parts` has what they consist of, `run` makes that of a run.

`charts` and `drift_charts` describe figures for plotly.js, `sections` writes the rest of the page of a run, and
`mathml` the equations. `assets` has the style and the script of every page.
"""
