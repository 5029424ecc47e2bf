"""The user's data, read from arrays, tables and files, and the time grid on which a run works.

The public type is `TimeSeries` in `series`. Data are checked in this folder; an error names the value and its place.
"""
