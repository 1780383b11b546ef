// Neighbourhoods: widths by head, one layer at a time, and details of the dot that is pointed at.
"use strict";
for (const figure of document.querySelectorAll(".neighbourhood")) {
  const [layer, head] = figure.querySelectorAll("select");
  const edges = [...figure.querySelectorAll(".canvas .edge")];
  const dots = [...figure.querySelectorAll("[role=option]")];
  const weights = edges.map((edge) => edge.dataset.w.split(",").map(Number));
  const widest = 9, narrowest = 1.2;

  function drawEdges() {
    // one scale for all heads of a ring: rings have other numbers of neighbours, and so other weights
    const most = {};
    edges.forEach((edge, i) => {
      const ring = edge.dataset.ring;
      most[ring] = Math.max(most[ring] ?? 0, ...weights[i].map(Math.abs));
    });
    edges.forEach((edge, i) => {
      const w = weights[i][Number(head.value)];
      const width = most[edge.dataset.ring] ? Math.abs(w) / most[edge.dataset.ring] : 0;
      edge.style.strokeWidth = Math.max(widest * width, narrowest);
      edge.classList.toggle("kept", w >= 0);
      edge.classList.toggle("subtracted", w < 0);
    });
  }

  function fade() {
    const ring = layer.value === "" ? null : Number(layer.value);
    const shown = new Set(dots.slice(0, 1).map((dot) => dot.id));
    for (const edge of edges) {
      const there = ring === null || Number(edge.dataset.ring) === ring;
      edge.classList.toggle("faded", !there);
      if (there) shown.add(edge.dataset.from).add(edge.dataset.to);
    }
    for (const dot of dots) dot.classList.toggle("faded", !shown.has(dot.id));
  }

  function select(dot) {
    for (const each of dots) {
      const chosen = each === dot;
      each.setAttribute("aria-selected", chosen);
      each.tabIndex = chosen ? 0 : -1;
      document.getElementById("about-" + each.id).hidden = !chosen;
    }
  }

  function next(dot, key) {
    const ring = dots.filter((each) => each.dataset.ring === dot.dataset.ring);
    const at = ring.indexOf(dot);
    if (key === "ArrowRight") return ring[(at + 1) % ring.length];
    if (key === "ArrowLeft") return ring[(at + ring.length - 1) % ring.length];
    if (key === "ArrowUp") return document.getElementById(dot.dataset.of) ?? dot;
    if (key === "ArrowDown") {
      const edge = edges.find((each) => each.dataset.to === dot.id);
      return edge ? document.getElementById(edge.dataset.from) : dot;
    }
    return { Home: dots[0], End: dots.at(-1) }[key];
  }

  for (const dot of dots) {
    dot.addEventListener("focus", () => select(dot));
    dot.addEventListener("mouseenter", () => select(dot));
    dot.addEventListener("click", () => dot.focus());
    dot.addEventListener("keydown", (event) => {
      const to = next(dot, event.key);
      if (!to) return;
      event.preventDefault();
      to.focus();
    });
  }
  layer.addEventListener("change", fade);
  head.addEventListener("change", drawEdges);
  figure.querySelector(".choices").hidden = false;
  drawEdges();
}
