"""Optional packages. Parts of the library that need one raise an error that names the extra to install."""

from importlib.util import find_spec

# For each optional package, the extra of pyproject.toml that installs it.
EXTRAS = {
    "typer": "cli",
    "rich": "cli",
    "plotly": "report",
    "latex2mathml": "report",
    "xarray": "xarray",
    "diffrax": "diffrax",
    "joblib": "parallel",
    "distributed": "parallel",
    "openpyxl": "tables",
    "pyarrow": "tables",
}


class MissingExtra(ImportError):
    """Raised when an optional package is not installed; the message says what needs it and how to install it."""


def check_extra(package: str, needed_by: str) -> None:
    """Raise MissingExtra unless the package is installed. The package is not imported, so the check is fast."""
    if find_spec(package) is None:
        raise MissingExtra(f'{needed_by} needs {package}: pip install "girsanov[{EXTRAS[package]}]"', name=package)
