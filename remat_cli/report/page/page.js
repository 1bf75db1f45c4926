"use strict";
const readJson = (id) => JSON.parse(document.getElementById(id).textContent);
const told = (bytes) => (bytes / 1048576).toFixed(2) + " MiB";

function watch(figure, view, course) {
  const box = figure.querySelector(".chart"), out = figure.querySelector("output");
  const cursor = box.appendChild(Object.assign(document.createElement("div"), {className: "cursor"}));
  const last = course.ops.length - 1;
  let step = course.peak;
  const show = (wanted) => {
    step = Math.min(last, Math.max(0, wanted));
    const alive = course.tensors.filter((t) => t.lives.some(([a, b]) => a <= step && step <= b));
    out.textContent = `step ${step} of ${course.ops.length}: ${course.ops[step]}, ${told(course.bytes[step])}`;
    if (alive.length) out.append("; alive: ");
    alive.slice(0, 6).forEach((t, place) => {
      const link = Object.assign(document.createElement("a"), {href: "#" + t.id, textContent: t.name});
      if (place) out.append(", ");
      out.append(link, ` ${told(t.size)}`);
    });
    if (alive.length > 6) out.append(` and ${alive.length - 6} more`);
    const [left, top] = corner(), frame = box.querySelector("svg").getBoundingClientRect();
    const outer = box.getBoundingClientRect();
    Object.assign(cursor.style, {
      left: frame.left - outer.left + left + view.scale("x")(step + 0.5) + "px",
      top: frame.top - outer.top + top + "px",
      height: view.height() + "px",
    });
  };
  const corner = () => [view.origin()[0] + view.padding().left, view.origin()[1] + view.padding().top];
  const at = (event) => {
    const frame = box.querySelector("svg").getBoundingClientRect();
    return Math.floor(view.scale("x").invert(event.clientX - frame.left - corner()[0]));
  };
  box.addEventListener("pointermove", (event) => show(at(event)));
  box.addEventListener("keydown", (event) => {
    const moves = {ArrowLeft: step - 1, ArrowRight: step + 1, Home: 0, End: last, p: course.peak};
    if (event.key in moves) { event.preventDefault(); show(moves[event.key]); }
  });
  addEventListener("resize", () => requestAnimationFrame(() => show(step)));
  show(step);
}

for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const options = {renderer: "svg", actions: false, ast: false};
  vegaEmbed(figure.querySelector(".chart > div"), readJson(figure.dataset.chart), options).then(({view}) => {
    if (figure.dataset.course) watch(figure, view, readJson(figure.dataset.course));
    document.body.dataset.drawn = 1 + Number(document.body.dataset.drawn || 0);
  });
}

for (const field of document.querySelectorAll("input[data-filters]")) {
  const rows = document.querySelectorAll(`#${field.dataset.filters} tbody tr`);
  field.addEventListener("input", () => {
    const word = field.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(word);
  });
}
