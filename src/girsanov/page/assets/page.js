"use strict";
// The theme, and the charts: each is an element of class "chart", followed by its description as JSON.
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null, printing = false;
  const theme = () => (printing ? "light" : chosen || (dark.matches ? "dark" : "light"));
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // A text such as "--blue" stands for the colour of that name, "--blue/0.2" for one that lets others through.
  function resolved(value) {
    if (typeof value === "string" && value.startsWith("--")) {
      const [name, alpha] = value.split("/");
      const hex = colour(name);
      if (alpha === undefined) return hex;
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
      return `rgba(${r},${g},${b},${alpha})`;
    }
    if (Array.isArray(value)) return value.map(resolved);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolved(v)]));
    }
    return value;
  }

  const charts = [...document.querySelectorAll(".chart")].map((element) => ({
    element, described: JSON.parse(element.nextElementSibling.textContent),
  }));

  function draw() {
    if (!window.Plotly) return Promise.resolve();
    return Promise.all(charts.map(({ element, described }) => {
      const { data, layout } = resolved(described);
      const narrow = element.clientWidth < 500 && !printing;
      if (printing) {
        layout.width = element.closest(".pair") ? 325 : 680;
        layout.height *= 0.8;
      } else layout.autosize = true;
      if (narrow) layout.legend = { ...layout.legend, font: { size: 10 } };
      return Plotly.react(element, data, layout, {
        displaylogo: false, responsive: !printing, displayModeBar: narrow ? false : "hover",
        modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
      });
    }));
  }

  function show() {
    root.dataset.theme = theme();
    if (button) {
      button.textContent = theme() === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-label", `Change to the ${theme() === "dark" ? "light" : "dark"} theme`);
    }
    return draw();
  }

  // The script of the charts is compressed: about two fifths of its size.
  async function load() {
    const packed = document.getElementById("charts");
    if (!packed || charts.length === 0) return;
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    await draw();
    root.dataset.ready = "yes";
  }

  if (button) button.addEventListener("click", () => { chosen = theme() === "dark" ? "light" : "dark"; show(); });
  dark.addEventListener("change", show);
  addEventListener("beforeprint", () => { printing = true; show(); });
  addEventListener("afterprint", () => { printing = false; show(); });
  show();
  load().catch((error) => {
    for (const { element } of charts) {
      element.innerHTML = '<p class="failed">This browser cannot draw the figure; one of 2023 or later can.</p>';
    }
    root.dataset.ready = "failed";
    console.warn(String(error));
  });
})();
