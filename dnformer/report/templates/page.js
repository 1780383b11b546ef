// Draws the figures with the colours of the page's style, again where these change: dark, print.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("dnformer-figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const print = matchMedia("print");
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  function named(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  // only values of colour keys: a user's text may begin with "$", too
  function coloured(value, key) {
    if (Array.isArray(value)) return value.map((each) => coloured(each, key));
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, k)]));
    }
    if (value === "$heat") return [[0, named("heat-low")], [1, named("heat-high")]];
    const names = /color$/i.test(key) && typeof value === "string" && value.startsWith("$");
    return names ? named(value.slice(1)) : value;
  }

  // where there is little room, a heat map has neither numbers nor scale
  function fitting(data, narrow) {
    if (!narrow) return data;
    return data.map(({ texttemplate, ...trace }) => (
      trace.type === "heatmap" ? { ...trace, showscale: false } : trace
    ));
  }

  // a name's first letters; an entity as in &lt; is one
  function short(name) {
    const letters = name.match(/&\w+;|[^]/gu) ?? [];
    return letters.length > 12 ? letters.slice(0, 11).join("") + "…" : name;
  }

  function styled(layout, height, narrow) {
    const axis = {
      gridcolor: named("grid"), linecolor: named("rule"), zerolinecolor: named("rule"),
      tickcolor: named("rule"), automargin: true,
    };
    const style = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: { color: named("text"), family: "system-ui, 'DejaVu Sans', sans-serif", size: 13 },
      margin: { l: 8, r: 12, t: 28, b: 8, pad: 2 },
      hoverlabel: {
        bgcolor: named("page"), bordercolor: named("rule"), font: { color: named("text") },
      },
      // below the axis and its title, whatever the height
      legend: { orientation: "h", y: -62 / (height - 120), x: 0, yanchor: "top" },
      dragmode: narrow ? false : "zoom",
      transition: { duration: still.matches ? 0 : 150 },
    };
    const found = { ...style, ...layout };
    for (const key of Object.keys(found)) {
      if (/^[xy]axis\d*$/.test(key)) {
        found[key] = { ...axis, ...found[key] };
        const names = found[key].ticktext;
        if (narrow && names) found[key].ticktext = names.map(short);
      }
    }
    return found;
  }

  function draw() {
    const narrow = innerWidth < 640;
    for (const [id, figure] of Object.entries(figures)) {
      Plotly.react(
        id,
        coloured(fitting(figure.data, narrow), ""),
        styled(coloured(figure.layout, ""), document.getElementById(id).clientHeight, narrow),
        // no buttons: what they do is done by dragging, and one of them would send the data away
        { responsive: true, displayModeBar: false },
      );
    }
  }

  draw();
  dark.addEventListener("change", draw);
  print.addEventListener("change", draw);
  addEventListener("beforeprint", draw);
  addEventListener("afterprint", draw);
})();
