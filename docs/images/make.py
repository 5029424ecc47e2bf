"""Make the pictures of the documentation: those that docs/pictures.md writes, and the screenshot of a report page.

Run it in the folder of the project: .venv/bin/python docs/images/make.py. The screenshot needs chromium with
chromedriver.
"""

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["MPLBACKEND"] = "Agg"
HERE = Path(__file__).resolve().parent
GROWTH = re.compile(r'logistic = """\n(.*?)"""', re.DOTALL)
COLOURS = 64  # of the screenshot, which is drawn in few


def of_page(folder: Path) -> None:
    """Run the blocks of docs/pictures.md and keep what they write."""
    text = (HERE.parent / "pictures.md").read_text(encoding="utf-8")
    os.chdir(folder)
    namespace: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, namespace)
    for path in folder.glob("*.png"):
        shutil.copyfile(path, HERE / f"pictures_{path.name}")


def of_report(folder: Path) -> None:
    """Write the model of docs/equations.md, learn it from simulated data, and photograph the page of that run."""
    from PIL import Image
    from selenium import webdriver

    os.chdir(folder)
    found = GROWTH.search((HERE.parent / "equations.md").read_text(encoding="utf-8"))
    assert found is not None
    Path("growth.toml").write_text(found[1], encoding="utf-8")
    for arguments in (
        "simulate growth.toml --span 0 20 --dt 0.05 --n 40 --out run",
        "learn growth.toml run/data.csv --dt 0.1 --span 0 20 --out learn",
        "report learn --diagnose",
    ):
        subprocess.run([sys.executable, "-m", "girsanov.cli", *arguments.split()], check=True)
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    view = {"width": 1000, "height": 1250, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", view)
    driver.get((folder / "learn" / "report.html").as_uri())
    while driver.execute_script("return document.documentElement.dataset.ready") != "yes":
        time.sleep(0.1)
    image = driver.execute_cdp_cmd("Page.captureScreenshot", {})["data"]
    driver.quit()
    Path("shot.png").write_bytes(base64.b64decode(image))
    Image.open("shot.png").convert("RGB").quantize(COLOURS).save(HERE / "report.png", optimize=True)


if __name__ == "__main__":
    for make in (of_page, of_report):
        with tempfile.TemporaryDirectory() as name:
            make(Path(name).resolve())
            os.chdir(HERE)
