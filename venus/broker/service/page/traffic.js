// Delayed clients with the reason, degraded lanes, and recent health facts; one sentence if there are none.
import { cutOver } from "./business.js";
import { ago, bytes, clock, el, num, sheet, span } from "./show.js";

// Pauses of the broker's own large work for small commits are not shown as delays.
const NEAR = 0.8, COURTESY = "small commits";
const valued = (gauge, value) => gauge.unit === "bytes" ? bytes(value) : gauge.unit === "ms" ? span(value / 1000) : num(Math.round(value));
const near = gauge => gauge.limit > 0 && gauge.value >= NEAR * gauge.limit;

function sentence(traffic, over) {
  const held = traffic.brakes.filter(brake => brake.on && brake.brake !== COURTESY && !over.has(brake.business));
  const given = traffic.lanes.filter(lane => Number(lane.degraded_since_us));
  const said = [
    ...held.map(brake => ["warn", `${brake.brake}: delays ${[brake.who, brake.business && "business " + brake.business].filter(Boolean).join(" of ")
      || "this broker"} since ${clock(brake.since_us)}`]),
    ...given.map(lane => ["bad", `lane ${lane.lane} (${lane.name}) is degraded since ${clock(lane.degraded_since_us)}: ${lane.reason}`]),
    ...traffic.facts.map(fact => ["warn", `sub-healthy: ${fact.reason}, ${ago(fact.seen_us)} ago`]),
  ];
  if (!said.length) return el("p", {class: "none good"}, "No client is delayed, every lane is served fully.");
  return el("ul", {class: "said", "aria-label": "Traffic now"}, said.map(([tone, text]) => el("li", {class: tone}, text)));
}

function gauges(traffic) {
  return el("dl", {class: "facts"}, traffic.gauges.map(gauge => el("div", null, el("dt", null, gauge.name),
    el("dd", {class: near(gauge) && "warn"}, valued(gauge, gauge.value) + (gauge.limit ? " of " + valued(gauge, gauge.limit) : "")))));
}

export function traffic(status) {
  const found = status.traffic;
  if (!found) return null;
  const state = lane => Number(lane.degraded_since_us)
    ? el("span", {class: "bad"}, "degraded for " + ago(lane.degraded_since_us)) : el("span", {class: "good"}, "served fully");
  const all = b => b.consumers.length && b.consumers.every(cutOver);
  const over = new Set(status.businesses.filter(all).map(b => b.business));
  return el("section", {"aria-label": "Traffic"},
    el("h2", null, "Traffic"), sentence(found, over),
    el("details", null, el("summary", null, "Limits, lanes and limiters"), gauges(found),
      sheet("Lanes", ["Lane", "State", ">Busy", ">Waiting"], found.lanes.map(lane =>
        [`${lane.lane} ${lane.name}`, state(lane), num(lane.running) + " of " + num(lane.threads), num(lane.waiting)]), ""),
      sheet("Limiters", ["Limiter", "State", "Business", "Newest", ">Times", ">Waited"],
        [...found.brakes].sort((x, y) => Number(y.on) - Number(x.on)).map(brake =>
          [brake.brake, brake.on ? el("span", {class: "warn"}, "on for " + ago(brake.since_us)) : "off", brake.business || "–", brake.who || "–",
            num(brake.times), span(Number(brake.waited_ms) / 1000)]), "No client has been delayed since the start.")));
}
