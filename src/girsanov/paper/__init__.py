"""The paper's experiments: settings, data, tables, figures, and the commands `reproduce` and `report`.

It stands beside the library: nothing imports it. The command line finds it by its entry point.
"""
