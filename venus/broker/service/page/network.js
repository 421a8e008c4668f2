// Position of this broker's set in the network: the set above, mirrored businesses, and the sets that pull from here.
import { ago, bytes, el, num, sheet, span } from "./show.js";

const PULLS_AS = "mirror/";
// States of a mirror that need no operator.
const WELL = {following: "good", filling: "warn", elsewhere: "soft"};
export const isSet = consumer => consumer.group.startsWith(PULLS_AS);
export const setName = consumer => consumer.group.slice(PULLS_AS.length);
export const concernsAbove = alarm => alarm.rule.startsWith("mirror_");
const late = consumer => Number(consumer.backlog_rows) && Number(consumer.oldest_unacknowledged_us) ? ago(consumer.oldest_unacknowledged_us) : "";

export const mirrorTone = mirror => WELL[mirror.state] || "bad";
export const mirrorState = mirror => (mirror.state === "filling" && Number(mirror.rows_expected)
  ? `filling, ${num(mirror.rows)} of about ${num(mirror.rows_expected)} rows` : mirror.state) + " for " + ago(mirror.since_us);
export const mirrorBehind = mirror => Number(mirror.lag) ? `${num(mirror.lag)} offsets, ${span(Number(mirror.lag_ms) / 1000)}`
  : mirrorTone(mirror) === "bad" ? "level when last seen" : "level";
// A restart raises no alarm. A longer absence raises one and is red.
export const setTone = (consumer, raised) => raised.some(alarm => alarm.rule.startsWith("set_") && alarm.text.includes(`set ${setName(consumer)}:`)) ? "bad"
  : consumer.connected ? "good" : "warn";
export const setState = consumer => consumer.connected ? (late(consumer) ? late(consumer) + " behind" : "level") : "away for " + ago(consumer.updated_at_us);

// The nearest sets that are not in use, each once.
const absences = mirrors => [...new Map(mirrors.map(([, m]) => m).filter(m => m.nearest)
  .map(m => [m.nearest, `${m.nearest}: not used for ${ago(m.away_since_us)}; ${m.not_back}`])).values()];

function facts(status, mirrors, below) {
  const n = status.network, above = n.path.length > 1 ? n.path[n.path.length - 2] : n.upstream.length ? "not known yet" : "";
  const lost = n.refused || (status.raised || []).some(alarm => concernsAbove(alarm) && alarm.rule !== "mirror_away") || mirrors.some(([, m]) => mirrorTone(m) === "bad");
  const worst = mirrors.map(([, m]) => m.state).find(state => !WELL[state]) || (lost ? "nothing arrives" : "answers");
  return el("dl", {class: "facts"}, [
    ["This set", n.set], ["Tier", `${n.tier}, level ${num(n.level)}`],
    n.labels.length ? ["Labels", n.labels.join(", ")] : null,
    above ? ["Set above", `${above}: ${worst}`, lost ? "bad" : "good"] : ["Set above", "none: this is the home"],
    ...absences(mirrors).map(text => ["Nearest set", text, "warn"]),
    n.upstream.length ? ["Its brokers", n.upstream.join(", ")] : null,
    ["Sets known", num(n.sets_known)],
    ["Sets below", below.length ? [...new Set(below.map(([, c]) => setName(c)))].join(", ") : "none has pulled yet"],
  ].filter(fact => fact).map(([name, value, tone]) => el("div", null, el("dt", null, name), el("dd", {class: tone}, value))));
}

// This broker among those that share the matching of subscriptions.
export function overlay(status) {
  const o = status.overlay;
  if (!o) return null;
  const elsewhere = Number(o.changes_elsewhere), here = Number(o.changes_here);
  return el("section", {"aria-label": "Overlay"}, el("h2", null, "Overlay"), el("dl", {class: "facts"}, [
    ["Cluster", `${o.cluster}: ${o.members.join(", ")}`], ["Neighbours", num(o.neighbours)],
    ["Load", `${Math.round(o.load * 100)} % of a core`], ["Subscriptions of others", num(o.installed_interests)],
    ["Own subspaces", num(o.subspaces) + (Number(o.uninstalled) ? `, ${num(o.uninstalled)} not at a cluster` : "")],
    ["Own changes", `${num(elsewhere)} matched elsewhere, ${num(here)} here`],
    ["Requests without an answer", `${num(o.unanswered)} of ${num(o.requests)}`],
  ].map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value)))));
}

const share = (broker, name) => broker.reported ? Math.round(100 * broker[name]) + " %" : "–";

// Load of the brokers of the cluster, and what they lead.
export function cluster(status) {
  if (!(status.brokers || []).length) return null;
  return el("section", {"aria-label": "Cluster"}, sheet("Brokers of the cluster",
    ["Broker", "Site", ">CPU", ">Memory", ">Disk", ">Network", ">Leads", ">Follows", "State"],
    status.brokers.map(b => [b.broker, b.site || "–", share(b, "cpu"), share(b, "memory"), share(b, "disk"), share(b, "network"),
      num(b.leads), num(b.follows), el("span", {class: b.unhealthy || b.draining ? "warn" : "good"}, b.draining ? "draining" : b.unhealthy || "healthy")]), ""));
}

export function network(status) {
  const n = status.network;
  const mirrors = status.businesses.filter(b => b.mirror).map(b => [b, b.mirror]);
  const below = status.businesses.flatMap(b => b.consumers.filter(isSet).map(c => [b, c]));
  if (!n || !n.upstream.length && !below.length) return null;
  return el("section", {"aria-label": "Network"},
    el("h2", null, "Network"),
    el("p", {class: "way"}, n.path.map((name, i) => [i ? " → " : "", el(name === n.set ? "strong" : "span", null, name)]).flat()),
    n.refused ? el("ul", {class: "said"}, el("li", {class: "bad"}, "nothing is mirrored: " + n.refused)) : null,
    facts(status, mirrors, below),
    n.upstream.length ? sheet("Mirrored from the set above", ["Business", "State", ">Offset here", ">Above", ">Behind", ">From the home", ">Pulled", "Tables"],
      mirrors.map(([b, m]) => [b.business,
        el("span", {class: mirrorTone(m)}, mirrorState(m) + (m.reason ? ": " + m.reason : "")), num(b.next_offset), num(m.upstream_offset),
        el("span", {class: Number(m.lag) && mirrorTone(m) === "bad" ? "bad" : ""}, mirrorBehind(m)), Number(m.hop_ms) ? `${span(Number(m.hop_ms) / 1000)}, mean ${span(m.hop_mean_s)} ± ${span(Math.sqrt(m.hop_variance))}` : "–",
        bytes(m.bytes), (m.only.length ? m.only.join(", ") : "all") + m.where.map(w => `; of ${w.table} where ${w.predicate}`).join("")]), "Nothing yet.") : null,
    below.length ? sheet("Sets that pull from here", ["Set", "Business", "State", ">Offset", ">Behind"],
      below.map(([b, c]) => [setName(c), b.business, el("span", {class: setTone(c, status.raised || [])}, setState(c)), num(c.acknowledged),
        Number(c.backlog_rows) ? `${num(c.backlog_rows)} changes, ${bytes(c.backlog_bytes)}` : "level"]), "") : null);
}
