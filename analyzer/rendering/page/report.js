"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const theme = read("theme");
  const charts = read("charts");

  const records = ({ fields, rows }) =>
    rows.map((row) => Object.fromEntries(fields.map((field, at) => [field, row[at]])));

  const themeAt = (width) => ({
    ...theme,
    axis: { ...theme.axis, labelLimit: Math.min(theme.axis.labelLimit, Math.round(width * 0.36)) },
    legend: { ...theme.legend, columns: Math.max(1, Math.floor(width / 170)) },
  });

  // Views above one another cannot ask for the page's width: they are told what axes and legends leave of it.
  const fitted = (spec, width) =>
    spec.vconcat ? { ...spec, vconcat: spec.vconcat.map((view) => ({ width: Math.max(180, width - 190), ...view })) } : spec;

  const drawn = new Map();

  const draw = async (id) => {
    const place = document.getElementById(id);
    const { spec, data, description } = charts[id];
    const width = place.clientWidth;
    try {
      drawn.get(id)?.view.finalize();
      const { view } = await vegaEmbed(
        place,
        { ...fitted(spec, width), data: { values: records(data) } },
        {
          mode: "vega-lite", ast: true, actions: false, renderer: "svg", config: themeAt(width), defaultStyle: false, logLevel: 1,
          bind: document.getElementById(id + "-controls"),
        },
      );
      const picture = place.querySelector("svg");
      picture.setAttribute("role", "img");
      picture.removeAttribute("aria-roledescription");
      picture.setAttribute("aria-label", description);
      for (const part of picture.children) part.setAttribute("aria-hidden", "true");
      place.dataset.state = "drawn";
      drawn.set(id, { view, width });
    } catch (error) {
      place.dataset.state = "failed";
      place.classList.add("failed");
      place.textContent = "This chart could not be drawn; the table below has its figures.";
      console.error(id, error);
    }
  };

  const drawAll = async () => {
    for (const id of Object.keys(charts)) {
      const folded = document.getElementById(id).closest("details:not([open])");
      if (folded) folded.addEventListener("toggle", () => draw(id), { once: true });
      else await draw(id);
    }
    document.documentElement.dataset.charts = "drawn";
  };

  // Views follow their width by themselves; labels and legends are laid out anew where it changes much.
  let later;
  window.addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(async () => {
      for (const [id, { width }] of [...drawn]) {
        const now = document.getElementById(id).clientWidth;
        if (now && Math.abs(Math.log(now / width)) > 0.2) await draw(id);
      }
    }, 250);
  });

  drawAll();
})();
