// Formatting of figures, and DOM elements. Text always stays text: nothing here parses HTML.
const count = new Intl.NumberFormat("en");
export const num = v => count.format(BigInt(v || 0));
export const rate = v => v === null || v === undefined ? "–" : count.format(v < 10 ? Math.round(v * 10) / 10 : Math.round(v)) + "/s";
export const bytes = v => {
  let n = Number(v || 0), i = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return (i && n < 100 ? n.toFixed(1) : Math.round(n)) + " " + units[i];
};
export const span = s => s < 0.0005 ? "0 s" : s < 1 ? Math.round(s * 1000) + " ms" : s < 120 ? s.toFixed(s < 10 ? 1 : 0) + " s"
  : s < 7200 ? Math.round(s / 60) + " min" : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
// Ages use the broker's clock, because the browser's clock may differ.
let aheadMs = 0;
export const setClock = us => { aheadMs = Number(us) ? Date.now() - Number(us) / 1000 : 0; };
export const age = us => Math.max(0, (Date.now() - aheadMs) / 1000 - Number(us) / 1e6);
export const ago = us => Number(us) ? span(age(us)) : "–";
export const clock = us => new Date(Number(us) / 1000).toLocaleString([], {dateStyle: "short", timeStyle: "medium"});

export function el(tag, attributes, ...children) {
  const svg = ["svg", "path", "line", "title"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value) node.setAttribute(name, value);
  node.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return node;
}
export function sheet(title, heads, rows, none, limit = 200) {
  const names = heads.map(head => head.replace(">", ""));
  const right = heads.map(head => head.startsWith(">") && "n");
  const body = rows.length
    ? el("table", {"aria-label": title},
        el("thead", null, el("tr", null, names.map((name, i) => el("th", {class: right[i], scope: "col"}, name)))),
        el("tbody", null, rows.slice(0, limit).map(row => el("tr", null, row.map((cell, i) =>
          el("td", {class: right[i], "data-head": names[i]}, cell instanceof Node ? cell : String(cell)))))))
    : el("p", {class: "none"}, none);
  const more = rows.length > limit ? el("p", {class: "none"}, num(rows.length - limit) + " more: see venus status") : null;
  return [el("h3", null, title), el("div", {class: "sheet", tabindex: rows.length ? "0" : ""}, body, more)];
}

// Changes `old` into `made` and keeps focus, selection and opened details.
export function patch(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName) { old.replaceWith(made); return; }
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== made.data) old.data = made.data; return; }
  for (const {name} of [...old.attributes]) if (!made.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const {name, value} of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  patchChildren(old, [...made.childNodes]);
}
export function patchChildren(old, made) {
  const before = [...old.childNodes];
  made.forEach((child, i) => before[i] ? patch(before[i], child) : old.append(child));
  before.slice(made.length).forEach(child => child.remove());
}
