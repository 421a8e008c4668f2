// The page of one broker: problems first, then each business. It reads status.json every 2 s and history.json every 10 s.
import { awayFrom, Business, cutOver, ledElsewhere } from "./business.js";
import { chart } from "./charts.js";
import { cluster, isSet, network, overlay } from "./network.js";
import { ago, bytes, clock, el, num, patchChildren, setClock, sheet, span } from "./show.js";
import { traffic } from "./traffic.js";

const EVERY_MS = 2000, HISTORY_EVERY_MS = 10000, TIMEOUT_MS = 10000;
let history = {times: [], series: [], left_out: 0}, historyAt = 0, answeredAt = 0;

async function read(path) {
  const answer = await fetch(path, {cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS)});
  const body = await answer.json();
  if (body.error) throw new Error(body.error);
  return body;
}

const leaders = businesses => businesses.filter(b => b.replication).map(b => `${b.business} at ${b.replication.leader || "no broker"}`).join(", ");

function verdict(s, raised) {
  if (raised.length) {
    const oldest = Math.min(...raised.map(alarm => Number(alarm.since_us)));
    const hops = [...new Set(raised.map(alarm => alarm.hop))].join(", ");
    return el("div", {class: "verdict is-bad"},
      el("span", {role: "alert"}, raised.length === 1 ? "1 alarm" : num(raised.length) + " alarms", " at: " + hops),
      el("small", null, "the oldest since " + clock(oldest) + " (" + ago(oldest) + ")"));
  }
  // The alarms of a business are at its leader, so this broker alone cannot be green for it.
  const away = [...new Set(s.businesses.flatMap(b => b.replication ? b.replication.replicas.filter(x => !x.alive).map(x => x.broker) : []))];
  const led = s.businesses.filter(ledElsewhere);
  if (away.length) {
    return el("div", {class: "verdict is-warn"}, el("span", {role: "status"}, (away.length === 1 ? "Broker " : "Brokers ") + away.join(", ") + " gone"),
      el("small", null, "see the alarms on the page of the leader: " + leaders(s.businesses)));
  }
  const missed = s.businesses.flatMap(awayFrom);
  if (missed.length) {
    const said = missed.join(", ");
    return el("div", {class: "verdict is-warn"}, el("span", {role: "status"}, said[0].toUpperCase() + said.slice(1)),
      el("small", null, "no alarm yet, it may be a restart; if it lasts, an alarm says what to do"));
  }
  if (led.length) {
    return el("div", {class: "verdict is-good"}, el("span", {role: "status"}, "Nothing needs you at this broker"),
      el("small", null, "alarms of the businesses it follows are on the page of their leader: " + leaders(led)));
  }
  const behind = s.businesses.flatMap(b => b.consumers.filter(c => !isSet(c) && !cutOver(c)).map(c => Number(c.backlog_rows) ? Number(c.oldest_unacknowledged_us) : 0)).filter(us => us);
  const most = behind.length ? ", the targets at most " + ago(Math.min(...behind)) + " behind" : "";
  return el("div", {class: "verdict is-good"}, el("span", {role: "status"}, "Nothing needs you"),
    el("small", null, num(s.businesses.length) + (s.businesses.length === 1 ? " business" : " businesses") + most));
}

function alarmList(raised) {
  if (!raised.length) return null;
  return el("ul", {class: "alarms", "aria-label": "Alarms"}, raised.map(alarm => el("li", null,
    el("p", {class: "text"}, el("span", {class: "tag"}, alarm.hop), (alarm.business ? "business " + alarm.business + ": " : "") + alarm.text),
    el("p", {class: "soft"}, "since " + clock(alarm.since_us) + " (" + ago(alarm.since_us) + "), " + alarm.rule.replaceAll("_", " ")),
    alarm.commands.map(command => el("code", {class: "type"}, command)))));
}

function machine(s) {
  const own = name => { const found = history.series.find(one => !one.business && one.figure === name); return found ? found.values : []; };
  return el("section", {"aria-label": "This broker"},
    el("h2", null, "This broker"),
    el("dl", {class: "facts"}, [
      ["Free space", bytes(s.free_bytes)], ["Memory", bytes(s.resident_bytes)],
      ["Recent changes in memory", bytes(s.buffer_bytes) + " of " + bytes(s.buffer_limit_bytes)],
      ["Running for", ago(s.started_at_us)], ["Refused calls", num(s.security ? s.security.refused_calls : 0)],
      ...(s.recipients || []).map(r => ["Alarms to " + r.name, r.problem ? "cannot be sent" : num(r.sent) + " sent"]),
    ].map(([name, value]) => el("div", null, el("dt", null, name), el("dd", null, value)))),
    el("div", {class: "charts"},
      chart("Memory", history.times, [["resident", own("resident_bytes")]], bytes),
      chart("Free space", history.times, [["data directory", own("free_bytes")]], bytes)),
    history.left_out ? el("p", {class: "none"}, num(history.left_out) + " figures have no chart, because there are too many") : null);
}

// A replica that installs a copy is listed among the businesses only once the copy is complete.
function installations(found) {
  if (!found.length) return null;
  return el("section", {"aria-label": "Installations"}, sheet("Replicas being installed",
    ["Business", "From", "Because", ">Records", ">Rate", ">Left"], found.map(x => [x.business, x.leader, x.reason || "–",
      num(x.records) + (Number(x.records_expected) ? " of about " + num(x.records_expected) : ""), bytes(x.bytes_per_s) + "/s",
      Number(x.seconds_left) >= 0 ? span(Number(x.seconds_left)) : "–"]), ""));
}

function show(s) {
  const raised = s.raised || [];
  const page = [verdict(s, raised), alarmList(raised), cluster(s), network(s), ...s.businesses.map(found => new Business(found, s, history).render()),
    installations(s.installations || []),
    s.businesses.length || (s.installations || []).length ? null : el("p", {class: "none"},
      s.network && s.network.upstream.length ? "No business yet: the set above has not sent any." : "No business yet: start an upper adapter (venus sync)."), overlay(s), traffic(s), machine(s)];
  patchChildren(document.getElementById("main"), page.filter(part => part));
  document.title = (raised.length ? `(${raised.length}) ` : "") + "VENUS broker" + (s.broker_id ? " " + s.broker_id : "");
  document.getElementById("who").textContent =
    [s.network && s.network.upstream.length && `set ${s.network.set}`, s.cluster && `cluster ${s.cluster}`, s.broker_id && `broker ${s.broker_id}`, `version ${s.version}`].filter(Boolean).join(" · ");
}

async function refresh() {
  const state = document.getElementById("state");
  try {
    const status = await read("status.json");
    if (Date.now() - historyAt >= HISTORY_EVERY_MS) {
      history = await read("history.json");
      historyAt = Date.now();
    }
    setClock(status.now_us);
    show(status);
    answeredAt = Date.now();
    document.body.classList.remove("is-old");
    state.className = "soft";
    state.textContent = new Date().toLocaleTimeString();
  } catch (error) {
    document.body.classList.add("is-old");
    state.className = "bad";
    const since = answeredAt ? "no answer for " + span((Date.now() - answeredAt) / 1000) + ", this page is that old" : "no answer";
    state.textContent = since + ": " + error.message;
    document.title = "(!) VENUS broker";
  } finally {
    setTimeout(refresh, EVERY_MS);
  }
}
refresh();
