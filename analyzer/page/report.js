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
    legend: { ...theme.legend, labelLimit: Math.min(theme.legend.labelLimit, Math.round(width * 0.4)), columns: Math.max(1, Math.floor((width - Math.min(200, width / 4)) / 190)) },
  });

  // Views above one another cannot ask for the page's width: they are told what axes and legends leave of it.
  const fitted = (spec, width) => {
    if (spec.vconcat) return { ...spec, vconcat: spec.vconcat.map((view) => ({ width: Math.max(180, width - 80), ...view })) };
    return spec.height?.step ? { ...spec, width } : spec;
  };

  // Charts as high as their rows: Vega-Lite warns where these ask for the page's width, Vega takes it without a word.
  const asWide = (spec) => (spec.height?.step ? { patch: (drawn) => ({ ...drawn, autosize: { type: "fit-x", contains: "padding" } }) } : {});

  // Texts only, and nothing of what is not known.
  const formatTooltip = (value, sanitize) => {
    if (typeof value !== "object") return sanitize(value);
    const known = Object.entries(value).filter(([, text]) => text !== null && text !== "" && text !== "null");
    const row = ([name, text]) =>
      `<tr><td class="key">${sanitize(name)}</td><td class="value">${sanitize(text)}</td></tr>`;
    return `<table>${known.map(row).join("")}</table>`;
  };

  const drawn = new Map();

  const chosen = (id) =>
    (charts[id].spec.params ?? []).map((param) => ({ ...param, value: drawn.get(id).view.signal(param.name) }));

  const drawAnew = async (id, name) => {
    await draw(id, chosen(id));
    if (name) document.querySelector(`#${id}-controls :is(select[name="${name}"], [name="${name}"]:checked)`)?.focus({ preventScroll: true });
  };

  const draw = async (id, params) => {
    const place = document.getElementById(id);
    const controls = document.getElementById(id + "-controls");
    const { data, description } = charts[id];
    const spec = params ? { ...charts[id].spec, params } : charts[id].spec;
    const width = place.clientWidth;
    try {
      drawn.get(id)?.view.finalize();
      controls.replaceChildren();
      const { view } = await vegaEmbed(
        place,
        { ...fitted(spec, width), data: { values: records(data) } },
        {
          mode: "vega-lite", ast: true, actions: false, renderer: "svg", config: themeAt(width), defaultStyle: false, logLevel: 1,
          tooltip: { formatTooltip }, ...asWide(spec),
          bind: controls,
        },
      );
      const picture = place.querySelector("svg");
      picture.setAttribute("role", "img");
      picture.removeAttribute("aria-roledescription");
      picture.setAttribute("aria-label", description);
      for (const part of picture.children) part.setAttribute("aria-hidden", "true");
      place.dataset.state = "drawn";
      drawn.set(id, { view, width });
      // Legends are laid out once: where a switch changes what stands in them, the chart is drawn anew.
      for (const name of spec.usermeta?.drawnAnewBy ?? [])
        view.addSignalListener(name, () => setTimeout(() => drawAnew(id, name)));
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

  // Views follow their width by themselves, but for those as high as their rows; labels and legends are laid out anew
  // where it changes much.
  let later;
  window.addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(async () => {
      for (const [id, { width }] of [...drawn]) {
        const now = document.getElementById(id).clientWidth;
        if (now && Math.abs(Math.log(now / width)) > (charts[id].spec.height?.step ? 0 : 0.2)) await drawAnew(id);
      }
    }, 250);
  });

  drawAll();
})();
