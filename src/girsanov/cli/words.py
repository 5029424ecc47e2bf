"""Messages of the library in the words of the command line: --unit D where Python has unit='D'."""

import re

# Arguments of the library that an option gives; the others keep their names.
_OPTIONS = {
    **{
        name: f"--{name}"
        for name in ("unit", "values", "errors", "inputs", "time", "id", "decimal", "dt", "span", "method")
    },
    **{name: f"--{name}" for name in ("trainable", "objective", "tolerance", "emission", "diffusion")},
    "date_order": "--date-order",
    "max_iterations": "--max-iterations",
    "constraints": "--constraint",
    "priors": "--prior",
    "likelihood": "--likelihood",
    "individual": "--individual",
    "random": "--random",
    "key": "--seed",
}
_PHRASES = {
    "unit= and origin= are for dates": "--unit is for dates",
    "so leave them out": "so leave it out",
    "(gv.CVIDP(time='continuous') in Python, --method continuous on the command line)": "(--method continuous)",
    "method=gv.CVIDP(time='continuous')": "--method continuous",
    "with method=gv.CVIDP()": "with --method cvi_dp",
    "key=jax.random.key(0)": "--seed 0",
    "start='data'": "--start-from-data",
    "trainable is empty: name at least one part of the model, e.g. trainable=['drift']": (
        "no parameter is to be learnt: name at least one, e.g. --trainable drift, or give a file of equations"
    ),
    "drop the observation with series.subset": "drop that row",
}
_ARGUMENT = re.compile(
    rf"(?<![\w.=(])(?P<name>{'|'.join(_OPTIONS)})=(?P<value>'[^']*'|\"[^\"]*\"|\[[^\]]*\]|[-+\w.]*)(?![\w(])"
)

_SUBJECT = re.compile(rf"^(?P<name>{'|'.join(_OPTIONS)})(?= (must|may|names|goes|is for)\b)")


def in_options(message: str) -> str:
    """Return a message with the arguments that it names as options; calls of pandas in it stay as they are."""
    for phrase, said in _PHRASES.items():
        message = message.replace(phrase, said)
    message = _SUBJECT.sub(lambda m: _OPTIONS[m["name"]], message)
    parts = re.split(r"(pandas\.\w+\([^)]*\))", message)
    return "".join(part if i % 2 else _ARGUMENT.sub(_option, part) for i, part in enumerate(parts))


def _option(m: re.Match) -> str:
    option, value = _OPTIONS[m["name"]], m["value"]
    if value.startswith("["):
        items = [item.strip().strip("'\"") for item in value[1:-1].split(",")]
        return " ".join(f"{option} {item}" for item in items)
    value = value.strip("'\"")
    return f"{option} {value}" if value else option
