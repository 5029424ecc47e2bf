"""What a user brings: observations at irregular times, read from arrays, tables and files, and the grid of a run.

`series` is the public type. Everything that is wrong with data is found here, and said with its value and its place.
"""
