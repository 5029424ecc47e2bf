"""Files as people have them: read as they are meant, with a word on what was found, or refused with the line."""

import datetime

import numpy as np
import pandas as pd
import pytest

import girsanov as gv
from girsanov._core import extras

pytestmark = pytest.mark.usefixtures("as_a_user")


def read(tmp_path, content, **options):
    path = tmp_path / "run.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return gv.TimeSeries.from_csv(path, **options)


PLAIN = "t,y\n0,1.5\n1,2\n2.5,-3e-2\n"
COMMA = "t;y\n0;1,5\n1;2\n2,5;-3e-2\n"
GOOD = {
    "commas": (PLAIN, []),
    "semicolons": (PLAIN.replace(",", ";"), ["columns separated by semicolons"]),
    "tabs": (PLAIN.replace(",", "\t"), ["columns separated by tabs"]),
    "bars": (PLAIN.replace(",", "|"), ["columns separated by the sign |"]),
    "blanks": (PLAIN.replace(",", "   "), ["columns separated by blanks"]),
    "decimal commas": (COMMA, ["columns separated by semicolons", "decimal commas"]),
    "decimal commas and tabs": (COMMA.replace(";", "\t"), ["columns separated by tabs", "decimal commas"]),
    "decimal commas in quotes": ('t,y\n0,"1,5"\n1,2\n"2,5",-3e-2\n', ["decimal commas"]),
    "Excel's first line": ("sep=;\n" + COMMA, ["columns separated by semicolons", "decimal commas"]),
    "UTF-8 with its mark": (b"\xef\xbb\xbf" + PLAIN.encode(), []),
    "UTF-16": (PLAIN.encode("utf-16"), ["text in UTF-16"]),
    "UTF-16 without its mark": (PLAIN.encode("utf-16-be"), ["text in UTF-16"]),
    "Latin-1": (PLAIN.replace("t,y", "t,y,größe").replace("\n", ",1\n", 4).encode("latin-1"), None),
    "comment lines": ("# by hand\n% 2024\n" + PLAIN.replace("1,2\n", "# a pause\n1,2\n"), ["3 comment lines"]),
    "a header in a comment": ("# source\n# " + PLAIN, ["the header in a comment line", "1 comment line"]),
    "carriage returns": (PLAIN.replace("\n", "\r\n"), []),
    "old carriage returns": (PLAIN.replace("\n", "\r"), []),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_a_file_is_like_is_found_out_and_said(tmp_path, name):
    content, found = GOOD[name]
    if name == "Latin-1":
        content, found = "t,y,größe\n0,1.5,1\n1,2,1\n2.5,-3e-2,1\n".encode("latin-1"), ["text in Latin-1"]
    series = read(tmp_path, content, values="y")
    assert series.times.tolist() == [0.0, 1.0, 2.5] and series.values[:, 0].tolist() == [1.5, 2.0, -0.03]
    assert series.source.found == found


def test_names_in_latin_1(tmp_path):
    series = read(tmp_path, "t;größe\n0;1,5\n".encode("latin-1"), values="größe")
    assert series.values.tolist() == [[1.5]] and "text in Latin-1" in series.source.found


DATES = {
    "2024-03-13 2024-04-01": None,
    "2024/03/13 2024/4/1": "year/month/day",
    "13.03.2024 01.04.2024": "day.month.year",
    "03/13/2024 04/01/2024": "month/day/year",
    "13-3-2024 1-4-2024": "day-month-year",
    "13-Mar-2024 01-Apr-2024": "day month year",
    "20240313 20240401": "yearmonthday",
}


@pytest.mark.parametrize("texts", DATES)
def test_dates_as_people_write_them(tmp_path, texts):
    first, second = texts.split()
    series = read(tmp_path, f"t,y\n{first},1\n{second},2\n", unit="D")
    assert series.times.tolist() == [0.0, 19.0] and series.origin == np.datetime64("2024-03-13")
    assert series.source.found == ([] if DATES[texts] is None else [f"dates as {DATES[texts]}"])


def test_dates_with_a_time_of_day(tmp_path):
    series = read(tmp_path, "t;y\n31.12.2023 9:30;1\n01.01.2024 12:00;2\n", unit="h")
    assert series.times.tolist() == [0.0, 26.5]


def test_a_date_that_may_be_two_is_read_as_the_user_says(tmp_path):
    text = "t,y\n01/02/2024,1\n01/03/2024,2\n"
    assert read(tmp_path, text, unit="D", date_order="DMY").times.tolist() == [0.0, 29.0]
    assert read(tmp_path, text, unit="D", date_order="MDY").times.tolist() == [0.0, 1.0]


def test_thousands_or_decimals_as_the_user_says(tmp_path):
    text = "t;y\n0;1,234\n1;2,345\n"
    assert read(tmp_path, text, decimal=",").values[:, 0].tolist() == [1.234, 2.345]
    with pytest.raises(ValueError, match="line 2, column 'y': '1,234' is not a number"):
        read(tmp_path, text, decimal=".")


def test_months_and_years_are_those_of_the_calendar(tmp_path):
    text = "t,y\n" + "".join(f"2023-{m:02d}-01,1\n" for m in range(1, 13)) + "2024-01-01,2\n2024-03-01,3\n"
    months = read(tmp_path, text, unit="month")
    assert months.times.tolist() == [*range(13), 14.0]
    years = read(tmp_path, text, unit="year")
    share = [(datetime.date(2023, m, 1) - datetime.date(2023, 1, 1)).days / 365 for m in range(1, 13)]
    np.testing.assert_allclose(years.times, [*share, 1.0, 1.0 + 60 / 366], rtol=0, atol=1e-15)
    for series in (months, years):
        back = series.dates(series.times)
        assert back[0] == np.datetime64("2023-01-01") and back[-1] == np.datetime64("2024-03-01")
        half = series.dates([0.5])
        assert abs(series.numbers(half)[0] - 0.5) < 1e-9
    with pytest.raises(ValueError, match="a month has no fixed length"):
        gv.TimeSeries(pd.to_timedelta([0, 1], "D"), [1, 2], unit="month")


BAD = {
    "three fields under a header of two": ("t,y\n0,1,2\n1,2,3\n", {}, r"line 2: 3 fields, '0,1,2', where the header"),
    "two fields under a header of three": ("t,y,z\n0,1\n1,2\n", {}, r"line 2: no row has more than 2 fields.*t, y, z"),
    "a title above": (
        "River\n\nt;y\n0;1\n",
        {},
        r"line 3: 2 fields, 't;y', where the header names 1 column, River; if lines",
    ),
    "no header": ("0,1\n1,2\n", {}, r"line 1: the first row is of numbers, 0, 1, and the columns have no names"),
    "both signs": ("t;y\n0;1,5\n1;2.5\n", {}, r"line 2, column 'y': '1,5' has a comma, but '2.5' in line 3.*a point"),
    "thousands": ("t;y\n0;1,234\n", {}, r"line 2, column 'y': '1,234' may be a decimal number or.*decimal=','"),
    "thousands and decimals": ('t,y\n0,"1,234.5"\n', {}, r"line 2, column 'y': '1,234.5' is not a number"),
    "day or month": ("t,y\n01.03.2024,1\n02.03.2024,2\n", {"unit": "D"}, "line 2.*1. of month 3 or.*date_order='DMY'"),
    "two forms": ("t,y\n2024-03-01,1\n03/02/2024,2\n", {"unit": "D"}, r"line 3.*not a date of the form of the first"),
    "no such day": ("t,y\n30.01.2024,1\n30.02.2024,2\n", {"unit": "D"}, r"line 3.*not a date of the calendar"),
    "dates as numbers": ("t,y\n20240301,1\n20240302,2\n", {}, r"line 2.*looks like the date 2024-03-01.*unit='D'"),
    "dates without a unit": ("t,y\n01.03.2024,1\n", {}, r"line 2, column 't': '01.03.2024' is not a number; if these"),
    "unsorted": ("t,y\n0,1\n\n2,2\n1,3\n", {}, r"run.csv: times must increase: the time in line 5 = 1.*sort the rows"),
    "unsorted dates": ("t,y\n2024-03-02,1\n2024-03-01,2\n", {"unit": "D"}, r"the time in line 3 = -1"),
    "duplicates": ("t,y\n0,1\n0,2\n", {}, r"the time in line 2 and the time in line 3 are both 0; average"),
    "huge": ("t,y\n0,1\n1,1e200\n", {}, r"line 3, column 'y': 1e200 is too large"),
    "infinite": ("t,y\n0,1\n1,inf\n", {}, r"line 3, column 'y': inf is too large"),
    "binary": (bytes(range(256)), {}, "is not text"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\3\0\0\0\2X", {}, "is not text"),
    "Excel by another name": (b"PK\x03\x04rest", {}, "an Excel file or a zip archive"),
    "nothing": (b"", {}, "is empty"),
    "comments only": ("# a\n# b\n", {}, "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_said_with_the_line(tmp_path, name):
    content, options, says = BAD[name]
    with pytest.raises(ValueError, match=f"(?s){says}"):
        read(tmp_path, content, **options)


def test_a_folder_is_not_read(tmp_path):
    with pytest.raises(ValueError, match="is a folder: give the file in it"):
        gv.TimeSeries.from_csv(tmp_path)


def test_one_row(tmp_path):
    series = read(tmp_path, "t,y\n3,1.5\n")
    assert len(series) == 1 and series.times.tolist() == [3.0]


def test_a_number_that_stands_for_a_missing_value_is_pointed_out(tmp_path):
    assert read(tmp_path, "t,y\n0,1.5\n1,-9999\n2,2\n").source.found == [
        "1 value of 'y' is -9999, taken as measured; leave the cells empty if they are missing"
    ]
    assert read(tmp_path, "t,y\n0,1500\n1,-9999\n2,9000\n").source.found == []


def test_lines_of_a_file_stand_in_messages_about_arrays(tmp_path):
    series = read(tmp_path, "t,n\n0,3\n\n1,-2\n")
    with pytest.raises(ValueError) as raised:
        gv.infer(gv.Model(gv.OrnsteinUhlenbeck(1.0), likelihood=gv.likelihoods.Poisson()), series, dt=0.5)
    assert "column 'n' in line 4 is -2.0" in series.source.told(str(raised.value))
    assert series.source.told("something else") == "something else"


def test_series_of_a_panel_know_their_lines(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("id;t;y\na;0;1,5\nb;0;2,5\na;1;3,5\n")
    panel = gv.Panel.from_csv(path, id="id")
    assert panel["a"].source.lines == [2, 4] and panel["b"].values.tolist() == [[2.5]]


@pytest.mark.parametrize("kind", ["xlsx", "parquet"])
def test_excel_and_parquet(tmp_path, kind):
    frame = pd.DataFrame({"when": pd.to_datetime(["2024-03-01T00", "2024-03-02T12"]), "y": [0.1, np.nan], "n": [3, 4]})
    path = tmp_path / f"run.{kind}"
    frame.to_excel(path, index=False) if kind == "xlsx" else frame.to_parquet(path)
    series = gv.TimeSeries.from_csv(path, time="when", unit="D")
    assert series.times.tolist() == [0.0, 1.5]
    np.testing.assert_array_equal(series.values, [[0.1, 3.0], [np.nan, 4.0]])
    place = "row 3" if kind == "xlsx" else "row 2"
    frame.loc[1, "when"] = pd.NaT
    frame.to_excel(path, index=False) if kind == "xlsx" else frame.to_parquet(path)
    with pytest.raises(ValueError, match=f"run.{kind}, {place}, column 'when': the time is missing"):
        gv.TimeSeries.from_csv(path, time="when", unit="D")
    path.write_text("t,y\n0,1\n")
    with pytest.raises(ValueError, match="that can be read"):
        gv.TimeSeries.from_csv(path)


def test_what_to_install_for_excel(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(extras.MissingExtra, match=r'reading a.xlsx needs openpyxl: pip install "girsanov\[tables\]"'):
        gv.TimeSeries.from_csv(tmp_path / "a.xlsx")
