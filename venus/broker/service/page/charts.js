// Small charts of the last hours, drawn as SVG without a library.
import { el, span } from "./show.js";

const WIDTH = 300, HEIGHT = 100;

function line(values, top, number) {
  let path = "", drawing = false;
  values.forEach((value, i) => {
    if (value === null) { drawing = false; return; }
    const x = values.length > 1 ? i * WIDTH / (values.length - 1) : WIDTH;
    path += `${drawing ? "L" : "M"}${x.toFixed(1)} ${(HEIGHT - 2 - value / top * (HEIGHT - 6)).toFixed(1)}`;
    // a point between two gaps is still a point
    if (!drawing && (values[i + 1] === null || values[i + 1] === undefined)) path += "h1.5";
    drawing = true;
  });
  return el("path", {class: `series s${number}`, d: path || "M0 0"});
}

// One chart: `series` is [[name, values]], `shown` formats a value.
export function chart(title, times, series, shown) {
  const known = series.filter(([, values]) => values.some(value => value !== null)).slice(0, 5);
  if (times.length < 2 || !known.length) return null;
  const top = Math.max(...known.flatMap(([, values]) => values.map(value => value || 0))) || 1;
  const words = known.map(([name, values]) => {
    const now = values[values.length - 1], most = Math.max(...values.map(value => value || 0));
    return `${name}: now ${now === null ? "not known" : shown(now)}, at most ${shown(most)}`;
  }).join("; ");
  const hours = span(times[times.length - 1] - times[0]);
  const at = seconds => new Date(seconds * 1000).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"});
  return el("figure", null,
    el("figcaption", null, el("b", null, title), known.map(([name], i) => el("span", {class: `key s${i + 1}`}, name))),
    el("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, last ${hours}. ${words}`},
      el("title", null, words),
      [4, HEIGHT / 2, HEIGHT - 2].map(y => el("line", {class: "axis", x1: "0", x2: String(WIDTH), y1: String(y), y2: String(y)})),
      known.map(([, values], i) => line(values, top, i + 1))),
    el("div", {class: "scale"}, el("span", null, at(times[0])), el("span", null, "top: " + shown(top)), el("span", null, at(times[times.length - 1]))));
}
