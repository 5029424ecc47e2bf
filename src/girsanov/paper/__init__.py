"""The experiments of the paper: settings, data, tables, figures, and the commands `reproduce` and `report`.

No other part of the library imports this package. The command line finds it by its entry point.
"""
