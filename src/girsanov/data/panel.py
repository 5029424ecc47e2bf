"""The public type for several series: subjects, cells, trials or sensors, each with observations of its own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from girsanov._core.checks import as_floats, shown
from girsanov.data.columns import Columns, Names, read_csv, read_frame
from girsanov.data.dates import as_numbers
from girsanov.data.inputs import input_names
from girsanov.data.series import TimeSeries


class Panel(Mapping[str, TimeSeries]):
    """Several independent series by name. Their lengths, times and missing values may differ.

    Args:
        series: a mapping from names to `TimeSeries`, or a sequence of them, which are then called "0", "1", …. Names
            become texts.

    Raises:
        ValueError: if there is no series, two have the same name, or their numbers of outputs or units differ.
    """

    def __init__(self, series: Mapping[Any, TimeSeries] | Sequence[TimeSeries]):
        if isinstance(series, Panel):
            series = dict(series.items())
        if not isinstance(series, Mapping):
            if isinstance(series, TimeSeries | str) or not isinstance(series, Sequence):
                raise ValueError(f"a panel is made from a mapping of names to gv.TimeSeries, got {series!r}")
            series = dict(enumerate(series))
        self._series: dict[str, TimeSeries] = {}
        for name, one in series.items():
            if not isinstance(one, TimeSeries):
                raise ValueError(f"series {str(name)!r} must be a gv.TimeSeries(times, values), got {one!r}")
            if str(name) in self._series:
                raise ValueError(
                    f"two series are called {str(name)!r}: names are compared as texts; rename one of them"
                )
            self._series[str(name)] = one
        if not self._series:
            raise ValueError("the panel is empty: give at least one series")
        self._check_alike()

    def _check_alike(self) -> None:
        """Raise a ValueError unless all series have the same number of outputs and the same kind of times."""
        first = next(iter(self))
        for name, one in self.items():
            if one.dim != self[first].dim:
                raise ValueError(
                    f"series {name!r} has {one.dim} values at each time, but series {first!r} has {self[first].dim}; "
                    "write NaN where a series lacks an output"
                )
            if one.unit != self[first].unit:
                raise ValueError(
                    f"the times of series {name!r} are counted in {one.unit or 'plain numbers'}, those of series "
                    f"{first!r} in {self[first].unit or 'plain numbers'}; give all of them the same unit="
                )
            if (one.inputs is None) != (self[first].inputs is None):
                some, other = (name, first) if one.inputs is None else (first, name)
                raise ValueError(
                    f"series {some!r} has no inputs, but series {other!r} has: give all of them inputs, such as "
                    "gv.Inputs.constant(0.0) where nothing acts on the state"
                )
            if one.inputs is not None and one.inputs.dim != self[first].inputs.dim:  # pyright: ignore
                raise ValueError(
                    f"the inputs of series {name!r} have {one.inputs.dim} components, those of series {first!r} "
                    f"{self[first].inputs.dim}; give all of them the same ones"  # pyright: ignore
                )

    @property
    def dim(self) -> int:
        """D, the number of values at each time."""
        return next(iter(self.values())).dim

    @property
    def names(self) -> list[str]:
        """The names of the series, in their order."""
        return list(self._series)

    def __getitem__(self, name: Any) -> TimeSeries:
        try:
            return self._series[str(name)]
        except KeyError:
            raise KeyError(unknown_name(name, self.names)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._series)

    def __len__(self) -> int:
        return len(self._series)

    def __repr__(self) -> str:
        sizes = [len(s) for s in self.values()]
        return f"Panel({len(self)} series of {min(sizes)} to {max(sizes)} times, D={self.dim})"

    def subset(self, names: Sequence[Any]) -> "Panel":
        """Select series.

        Args:
            names: the names of the series to keep, in the order that they shall have.

        Returns:
            A panel of these series.
        """
        return Panel({str(name): self[name] for name in names})

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        id: str,
        time: str = "t",
        values: Names = None,
        errors: Names = None,
        covariates: Names = None,
        unit: str | None = None,
        origin: Any = None,
        decimal: str | None = None,
        date_order: str | None = None,
        inputs: Names = None,
        input_kind: Any = "linear",
    ) -> "Panel":
        """Read a panel from a CSV file with a row for every series and time.

        Args:
            path: the file, as for `TimeSeries.from_csv`.
            id: name of the column that says to which series a row belongs.
            time: name of the time column.
            values: name or names of the value columns, by default all columns but the others named here.
            errors: name or names of the columns with the standard deviations of the values, in the order of `values`.
            covariates: name or names of the columns with numbers that are the same in all rows of a series.
            unit: give a unit, such as "D", "month" or "s", if the time column holds dates.
            origin: the date that becomes time zero of all series, by default the first date in the file.
            decimal: "." or ",", as for `TimeSeries.from_csv`.
            date_order: "DMY" or "MDY", as for `TimeSeries.from_csv`.
            inputs: name or names of columns with inputs, sampled at the times of the rows: an empty cell is no sample,
                or no impulse. A row may have inputs and no values.
            input_kind: "linear" (the default), "previous" or "impulse", as in `Inputs`, or one for each of the inputs.

        Returns:
            The panel, with the series in the order in which they first appear.
        """
        acting, how = input_names(inputs), {"decimal": decimal, "date_order": date_order}
        read = read_csv(path, time, values, errors, unit is not None, id, covariates, inputs=acting, **how)
        return cls._from_columns(read, unit, origin, acting, input_kind)

    @classmethod
    def from_dataframe(
        cls,
        frame: Any,
        *,
        id: str,
        time: str = "t",
        values: Names = None,
        errors: Names = None,
        covariates: Names = None,
        unit: str | None = None,
        origin: Any = None,
        inputs: Names = None,
        input_kind: Any = "linear",
    ) -> "Panel":
        """Read a panel from a pandas table with a row for every series and time.

        Args:
            frame: a pandas DataFrame; names may also be those of levels of its index.
            id: name of the column that says to which series a row belongs.
            time: name of the time column.
            values: name or names of the value columns, by default all columns but the others named here.
            errors: name or names of the columns with the standard deviations of the values, in the order of `values`.
            covariates: name or names of the columns with numbers that are the same in all rows of a series.
            unit: the unit in which to count the times, such as "D" or "s", if they are dates or durations.
            origin: the date that becomes time zero of all series, by default the first date in the table.
            inputs, input_kind: names of columns with inputs, and their kind, as in `from_csv`.

        Returns:
            The panel, with the series in the order in which they first appear.
        """
        acting = input_names(inputs)
        read = read_frame(frame, time, values, errors, unit is not None, "the table", id, covariates, acting)
        return cls._from_columns(read, unit, origin, acting, input_kind)

    @classmethod
    def from_xarray(
        cls, array: Any, *, id: str = "series", time: str = "time", covariates: Names = None, unit: str | None = None
    ) -> "Panel":
        """Read a panel from an xarray.DataArray.

        Args:
            array: the values, with a dimension for the series, one for the times, and with several outputs a third.
                NaN is a missing value; times at which a series has none are left out.
            id: name of the dimension of the series.
            time: name of the dimension of the times.
            covariates: name or names of coordinates with one number for every series.
            unit: the unit in which to count the times, if they are dates or durations.

        Returns:
            The panel.
        """
        dims = tuple(getattr(array, "dims", ()))
        if not ({id, time} <= set(dims) and len(dims) in (2, 3)):
            raise ValueError(
                f"from_xarray takes an xarray.DataArray with the dimensions {id!r} and {time!r}, and at most one more "
                f"for the outputs, got {dims or type(array).__name__}"
            )
        rest = [name for name in dims if name not in (id, time)]
        y = as_floats("the values", array.transpose(id, time, *rest).values, missing=True)
        y = y[..., None] if y.ndim == 2 else y
        names, t = (np.asarray(array[name].values) for name in (id, time))
        origin = _first_date(t, unit) if unit is not None else None
        described = _coordinates(array, id, covariates, len(names))
        made: dict[str, TimeSeries] = {}
        for name, values, own in zip(names.tolist(), y, described, strict=True):
            if str(name) in made:
                raise ValueError(f"the coordinate {id!r} has {str(name)!r} twice; give each series a name of its own")
            seen = ~np.isnan(values).all(1)
            if not seen.any():
                raise ValueError(f"series {str(name)!r} is empty: every value is missing (NaN); leave it out")

            def series(s=seen, v=values, c=own) -> TimeSeries:
                return TimeSeries(t[s], v[s], unit=unit, origin=origin, covariates=c)

            made[str(name)] = _named(name, series)
        return cls(made)

    @classmethod
    def _from_columns(cls, read: Columns, unit: str | None, origin: Any, acting: list[str], kind: Any) -> "Panel":
        """Cut the columns by their ids. With dates, time zero is the same for all series."""
        rows: dict[str, list[int]] = {}
        for i, name in enumerate(read.ids or []):
            rows.setdefault(name, []).append(i)
        if unit is not None and origin is None:
            origin = _first_date(read.times, unit)

        def series(r: list[int]) -> TimeSeries:
            errors = None if read.errors is None else read.errors[r]
            given = {c: _constant(c, column[r]) for c, column in (read.covariates or {}).items()}
            one = TimeSeries(read.times[r], read.values[r], errors=errors, unit=unit, origin=origin, covariates=given)
            if read.source is not None:
                one.source = read.source._replace(lines=[read.source.lines[i] for i in r])
            return one.with_columns(None if read.inputs is None else read.inputs[r], acting, kind)

        return cls({name: _named(name, lambda r=r: series(r)) for name, r in rows.items()})


def unknown_name(name: Any, names: list[str]) -> str:
    """Return the sentence for a name that is none of those of a panel."""
    some = ", ".join(repr(n) for n in names[:5]) + (", …" if len(names) > 5 else "")
    return f"there is no series {str(name)!r}; the panel has {some}"


def _constant(name: str, values: np.ndarray) -> float:
    """Return the value that a covariate has in all rows of a series."""
    gone = np.isnan(values)
    if gone.any():
        raise ValueError(f"the covariate {name!r} is missing in {gone.sum()} of {len(values)} rows; write it in each")
    if (values != values[0]).any():
        other = values[values != values[0]][0]
        raise ValueError(
            f"the covariate {name!r} varies: it is {shown(values[0])} in one row and {shown(other)} in another; a "
            "covariate is one number for the whole series"
        )
    return float(values[0])


def _coordinates(array: Any, id: str, names: Names, count: int) -> list[dict[str, Any]]:
    """Return the coordinates of every series that are its covariates."""
    names = [] if names is None else [names] if isinstance(names, str) else list(names)
    columns = {}
    for name in names:
        if name not in array.coords or array[name].dims != (id,):
            raise ValueError(
                f"covariates= names {name!r}, which is no coordinate of the dimension {id!r} alone; the coordinates "
                f"are {list(array.coords)}"
            )
        columns[name] = array[name].values.tolist()
    return [{name: column[k] for name, column in columns.items()} for k in range(count)]


def _first_date(times: Any, unit: str) -> Any:
    """Return the earliest date, or None for durations."""
    counted, origin = as_numbers("times", times, unit)
    return None if origin is None else times[int(np.nanargmin(counted))]


def _named(name: Any, make: Callable[[], Any]) -> Any:
    """Return what `make` returns, or raise its ValueError with the name of the series in front."""
    try:
        return make()
    except ValueError as error:
        raise ValueError(f"series {str(name)!r}: {error}") from None
