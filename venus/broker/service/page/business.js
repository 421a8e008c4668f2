// One business: the path of a row as a picture, its charts, its tables.
import { chart } from "./charts.js";
import { concernsAbove, isSet, mirrorBehind, mirrorTone, setName, setState, setTone } from "./network.js";
import { age, ago, bytes, el, num, rate, sheet, span } from "./show.js";

// States in which a table moves by itself; a state without an entry needs an operator.
const MOVES = {ACTIVE: "follows", CATCHUP: "catches up", LOADING: "is loaded", RESYNCING: "is resynced"};
// Intended states, and states that may end in a moment and raise an alarm only if they last.
const WANTED = {RELEASED: "not captured any more"}, PASSING = {RELEASING: "is taken out of capture", WAITING: "waits"};
// A longer list of following tables is folded, so that the rest of the page stays near.
const CALM_SHOWN = 30, UNDECIDED_S = 5;
// VENUS's own table at a source, which measures lag and has no rows of the application.
const isOwn = table => table.namespace === "venus" && table.name === "heartbeat" || table.name.toLowerCase() === "venus_heartbeat";
const figuresOf = reported => reported ? reported.report.figures || null : null;
const placed = reported => { const f = figuresOf(reported); return f && f.place ? ["Database", f.place] : null; };
const counted = (n, noun) => num(n) + " " + noun + (Number(n) === 1 ? "" : "s");
const short = (group, business) => group.startsWith(business + "/") ? group.slice(business.length + 1) : group;

function hop(title, state, tone, rows) {
  return el("section", {class: `hop is-${tone}`, "aria-label": title},
    el("h3", null, title, el("span", {class: tone}, state)),
    el("dl", null, rows.filter(row => row).flatMap(([name, value, of]) => [el("dt", null, name), el("dd", {class: of}, value)])));
}
const VERDICT_TONE = {same: "good", different: "bad", undecided: "warn"};
// The last comparison of a target, and its result.
function verified(c) {
  const found = (figuresOf(c.reported) || {}).compared;
  if (!found) return c.connected && figuresOf(c.reported) ? ["Last verified", "never", "soft"] : null;
  const rows = Number(found.different) ? `, ${counted(found.different, "row")}` : "";
  return ["Last verified", `${found.verdict}${rows}${found.partial ? ", in part" : ""}, ${ago(found.ended_at_us)} ago`, VERDICT_TONE[found.verdict] || "warn"];
}
// Rows of each load when this page first saw it: the rate since then gives the time left.
const firstSeen = new Map();
function leftOf(key, rows, expected) {
  const seen = firstSeen.get(key), now = Date.now();
  if (!seen || rows < seen.rows) firstSeen.set(key, {rows, at: now});
  const gained = seen ? rows - seen.rows : 0;
  return gained > 0 && expected > rows ? (now - seen.at) / 1000 * (expected - rows) / gained : null;
}
function loadRow(what, rows, expected, left) {
  const most = Math.max(rows, expected);
  return el("li", null, el("span", null, what), el("progress", {max: String(most || 1), value: String(rows), "aria-label": what}),
    el("span", {class: "soft"}, `${num(rows)} of about ${num(most)} rows` + (left === null ? "" : `, about ${span(left)} left`)));
}
export const cutOver = c => c.reported ? c.reported.report.cut_over : "";
export const ledElsewhere = b => b.replication && !b.replication.mode;
// Adapters and sets that should be connected and are not. A restart raises no alarm, but the page is not green then.
export const awayFrom = b => ledElsewhere(b) ? [] : [
  ...b.producer || b.mirror ? [] : ["no producer captures " + b.business],
  ...b.consumers.filter(c => !c.connected && !(c.reported && c.reported.report.paused))
    .map(c => isSet(c) ? `set ${setName(c)} does not pull ${b.business}` : `target ${short(c.group, b.business)} is away`)];
const last = values => values && values.length ? values[values.length - 1] : null;

export class Business {
  constructor(found, status, history) {
    this.b = found; this.s = status; this.times = history.times;
    this.series = history.series.filter(one => one.business === found.business);
    this.raised = (status.raised || []).filter(alarm => alarm.business === found.business);
    // Alarms of the broker itself concern each business.
    this.raisedHere = [...this.raised, ...(status.raised || []).filter(alarm => !alarm.business)];
  }
  // Half messages that wait for longer than a cut takes; younger ones change with every refresh.
  get undecided() {
    return this.b.halves.filter(h => age(h.received_at_us) >= UNDECIDED_S);
  }
  values(figure, group = "") {
    const found = this.series.find(one => one.figure === figure && one.group === group);
    return found ? found.values : [];
  }
  // The state of a hop and its tone, with the number of its alarms.
  judged(concerns, state, tone, raised = this.raised) {
    const alarms = raised.filter(concerns).length;
    return alarms ? [`${state} · ${alarms} ${alarms === 1 ? "alarm" : "alarms"}`, "bad"] : [state, tone];
  }
  // The leader judges its own clients; this broker does not know whether they are late.
  elsewhere(title, who) {
    const leader = this.b.replication.leader;
    return hop(title, leader ? "at the leader" : "no leader", leader ? "soft" : "bad", [[who, leader ? "connects to " + leader : "waits"]]);
  }
  source() {
    const b = this.b, paused = b.source && b.source.report.paused;
    if (b.mirror) return this.above();
    if (ledElsewhere(b)) return this.elsewhere("Source", "Producer");
    const state = paused ? "paused" : b.producer ? "captured" : "not captured";
    return hop("Source", ...this.judged(alarm => alarm.hop === "source", state, b.producer && !paused ? "good" : "warn"), [
      placed(b.source),
      ["Rows in", rate(last(this.values("in_per_s")))],
      ["Captured", Number(b.last_captured_at_us) ? ago(b.last_captured_at_us) + " ago" : "never"],
      this.undecided.length ? ["Undecided", counted(this.undecided.length, "half message"), "warn"] : null,
      ["Producer", b.producer || "not connected", b.producer ? "" : "warn"],
    ]);
  }
  // Where a mirror's changes come from, in place of the source.
  above() {
    const m = this.b.mirror;
    return hop("Set " + (m.set || "above"), ...this.judged(concernsAbove, m.state, mirrorTone(m)), [
      ["Since", ago(m.since_us)],
      ["Behind it", mirrorBehind(m), mirrorTone(m) === "bad" ? "bad" : ""],
      Number(m.hop_ms) ? ["From the home", span(Number(m.hop_ms) / 1000)] : null,
      m.only.length ? ["Tables", m.only.join(", ")] : null,
      m.reason ? ["Because", m.reason, "bad"] : null,
      ["Broker there", m.address || "none is connected", m.address ? "" : "warn"],
    ]);
  }
  // A broker set that pulls from here.
  below(c) {
    const name = setName(c);
    const concerns = alarm => alarm.rule.startsWith("set_") && alarm.text.includes(`set ${name}:`);
    return hop("Set " + name, ...this.judged(concerns, setState(c), setTone(c, this.raised)), [
      ["Has", "offset " + num(c.acknowledged)],
      ["Backlog", num(c.backlog_rows) + (Number(c.backlog_rows) ? ", " + bytes(c.backlog_bytes) : "")],
    ]);
  }
  broker() {
    const b = this.b, r = b.replication, behind = BigInt(b.next_offset) - BigInt(b.materialised_offset);
    const state = !r ? "serves" : r.mode ? "leads, " + r.mode : r.leader ? "follows " + r.leader : "no leader";
    const plain = !r ? "good" : r.mode === "sync" || (!r.mode && r.leader) ? "good" : r.leader ? "warn" : "bad";
    return hop(this.s.broker_id ? "Broker " + this.s.broker_id : "Broker", ...this.judged(alarm => alarm.hop === "broker" && !concernsAbove(alarm) && !alarm.rule.startsWith("set_"), state, plain, this.raisedHere), [
      ["Next offset", num(b.next_offset)],
      ["Full data", behind > 0n ? num(behind) + " changes behind" : "up to date", behind > 0n ? "warn" : ""],
      ["Log", bytes(b.log_bytes)],
      r ? ["Term", num(r.term)] : null,
      r ? ["Writes here", r.refusal ? "refused: " + r.refusal : "taken", r.refusal && r.mode ? "bad" : ""] : null,
      r && r.trouble ? ["Cannot follow", r.trouble, "bad"] : null,
      b.retention ? ["For unknown readers", `${bytes(b.retention.bytes)}: ${bytes(b.retention.bytes_per_s)}/s × ${span(Number(b.retention.mean_absence_ms) / 1000)} of ${counted(b.retention.absences, "absence")}`] : null,
      Number(b.held_bytes) ? ["Held", bytes(b.held_bytes), "warn"] : null,
      ["Last scrub", Number(b.last_scrub_at_us) ? ago(b.last_scrub_at_us) + " ago" : "not yet"],
    ]);
  }
  target(c) {
    const name = short(c.group, this.b.business);
    if (isSet(c)) return this.below(c);
    if (ledElsewhere(this.b)) return this.elsewhere("Target " + name, "Consumer");
    const paused = c.reported && c.reported.report.paused;
    const late = Number(c.backlog_rows) && Number(c.oldest_unacknowledged_us) ? age(c.oldest_unacknowledged_us) : 0;
    const concerns = alarm => alarm.hop === "target" && alarm.text.includes(`target ${name}:`);
    if (cutOver(c)) {
      return hop("Target " + name, ...this.judged(concerns, "cut over", "soft"), [
        placed(c.reported), ["Since", cutOver(c)], ["Has", "offset " + num(c.acknowledged)], ["Kept for a way back", bytes(c.backlog_bytes)]]);
    }
    const held = c.reported ? c.reported.report.tables.filter(t => t.table_id && !MOVES[t.state] && !PASSING[t.state]).length : 0;
    const refused = c.reported ? Number(c.reported.report.quarantined) : 0;
    const state = paused ? "paused" : c.connected ? (late > 5 ? span(late) + " behind" : held ? counted(held, "table") + " held"
      : refused ? counted(refused, "row") + " in quarantine" : "up to date") : "away for " + ago(c.updated_at_us);
    return hop("Target " + name, ...this.judged(concerns, state, c.connected && !paused && late <= 60 ? "good" : "warn"), [
      placed(c.reported),
      ["Rows out", rate(last(this.values("out_per_s", c.group)))],
      ["Backlog", num(c.backlog_rows) + (Number(c.backlog_rows) ? ", " + bytes(c.backlog_bytes) : "")],
      Number(c.slow_since_us) ? ["Takes nothing", "for " + ago(c.slow_since_us) + ", window " + bytes(c.window_bytes), "warn"] : null,
      Number(c.held_bytes) ? ["Kept for held tables", bytes(c.held_bytes), "warn"] : null,
      Number(c.unaccounted_rows) ? ["Unaccounted for", num(c.unaccounted_rows), "bad"] : null,
      verified(c),
    ]);
  }
  // Tables that are being read from the source, and targets that are being loaded.
  loads() {
    const b = this.b, fills = (figuresOf(b.source) || {fills: []}).fills;
    const read = fills.map(f => loadRow(`${f.name} is read from the source`, Number(f.rows), Number(f.rows_expected),
      leftOf(`${b.business} ${f.table_id}`, Number(f.rows), Number(f.rows_expected))));
    const loaded = b.leases.filter(l => Number(l.rows_read)).map(l => {
      const rows = Number(l.rows_read), expected = Number(l.rows_expected);
      const left = expected > rows && l.reading_s ? l.reading_s * (expected - rows) / rows : null;
      return loadRow(`${l.holder ? short(l.holder, b.business) : "a load"} is loaded`, rows, expected, left);
    });
    return read.length || loaded.length ? [el("h3", null, "Loads under way"), el("ul", {class: "loads", "aria-label": "Loads under way"}, read, loaded)] : [];
  }
  charts() {
    const groups = this.b.consumers.map(c => [isSet(c) ? "set " + setName(c) : short(c.group, this.b.business), c.group]);
    const each = figure => groups.map(([name, group]) => [name, this.values(figure, group)]).filter(([, values]) => values.length);
    return [
      chart("Rows per second", this.times, [["in", this.values("in_per_s")], ...each("out_per_s")], rate),
      chart("Lag", this.times, [["source", this.values("capture_lag_s")], ...each("lag_s")], span),
      chart("Backlog in rows", this.times, each("backlog_rows"), value => num(Math.round(value))),
    ].filter(made => made);
  }
  tableState(table) {
    const places = [["source", this.b.source], ...this.b.consumers.map(c => [short(c.group, this.b.business), c.reported])];
    const said = places.flatMap(([place, reported]) => reported ? reported.report.tables
      .filter(t => t.table_id === table.table_id)
      .map(t => [place, t, Number(reported.unknown_since_us) ? ", " + ago(reported.unknown_since_us) + " ago" : ""]) : []);
    if (!said.length) {
      const unreported = places.every(([, reported]) => !reported), cut = this.b.consumers.length && this.b.consumers.every(cutOver);
      const state = unreported ? "not reported yet" : cut ? "captured; every target was cut over" : "follows";
      return [el("span", {class: unreported || cut ? "soft" : "good"}, state), unreported ? 1 : 0];
    }
    const calm = t => t.state === "ACTIVE" && !Number(t.quarantined);
    const word = t => MOVES[t.state] || WANTED[t.state] || PASSING[t.state];
    const bad = said.some(([, t]) => !word(t) || Number(t.quarantined));
    const kind = t => calm(t) ? "good" : !word(t) || Number(t.quarantined) ? "bad" : WANTED[t.state] ? "soft" : "warn";
    return [el("div", null, said.map(([place, t, old]) => el("div", {class: kind(t)},
      (word(t) || t.state) + " at " + place + (Number(t.quarantined) ? ", " + counted(t.quarantined, "row") + " in quarantine" : "") + old +
      (t.reason ? ": " + t.reason : "") + (t.rows ? "; it gets " + t.rows : "") +
      (t.columns ? "; columns: " + t.columns : "")))), bad ? 3 : said.every(([, t]) => calm(t)) ? 0 : 2];
  }
  // Estimated rows by table, for each place that reports them.
  rowCounts() {
    const places = [["source", this.b.source], ...this.b.consumers.filter(c => !isSet(c)).map(c => [short(c.group, this.b.business), c.reported])];
    return places.filter(([, reported]) => figuresOf(reported) && figuresOf(reported).rows.length)
      .map(([place, reported]) => [place, new Map(figuresOf(reported).rows.map(found => [found.table_id, found.rows]))]);
  }
  tables() {
    const own = this.b.tables.filter(isOwn).length, counts = this.rowCounts();
    const rows = this.b.tables.filter(t => !isOwn(t)).map(t => [t, ...this.tableState(t)]);
    rows.sort((x, y) => y[2] - x[2]);
    const about = (t, found) => found.has(t.table_id) ? "~" + num(found.get(t.table_id)) : "–";
    const shown = (title, some) => sheet(title, ["Table", "State", ...counts.map(([place]) => `>Rows at ${place}, about`), ">Changes"],
      some.map(([t, state]) => [t.namespace + "." + t.name, state, ...counts.map(([, found]) => about(t, found)), num(t.committed_changes)]), "No table yet.");
    const calm = rows.filter(row => !row[2]), others = rows.filter(row => row[2]);
    const more = Number(this.b.tables_total) - rows.length - own;
    const rest = more > 0 ? [el("p", {class: "none"}, num(more) + " more, of which nothing is reported: see venus status")] : [];
    if (calm.length <= CALM_SHOWN) return [...shown("Tables", rows), ...rest];
    return [...others.length ? shown("Tables", others) : [el("h3", null, "Tables")],
      el("details", null, el("summary", null, num(calm.length) + " tables follow"), shown("Tables that follow", calm)), ...rest];
  }
  replicas() {
    const r = this.b.replication;
    if (!r) return [];
    return sheet("Brokers of this business", ["Broker", "Address", "State", ">Entries behind"], r.replicas.map(x => [
      x.broker + (x.broker === r.leader ? " (leads)" : ""), x.address || "–",
      el("span", {class: !x.alive ? "bad" : x.in_sync ? "good" : "warn"}, !x.alive ? "gone" : x.in_sync ? "in sync" : "not in sync"),
      x.behind === undefined || !x.alive ? "–" : num(x.behind)]), "None.");
  }
  render() {
    const b = this.b;
    return el("section", {"aria-label": "Business " + b.business},
      el("h2", null, "Business " + b.business),
      el("ul", {class: "path"},
        el("li", null, this.source()), el("li", null, this.broker()),
        el("li", null, el("div", {class: "targets"}, b.consumers.length ? b.consumers.map(c => this.target(c))
          : ledElsewhere(b) ? this.elsewhere("Targets", "Consumers") : hop("Target", "none", b.mirror ? "soft" : "warn", [["Next", "venus migrate"]])))),
      this.loads(),
      el("div", {class: "charts"}, this.charts()),
      this.replicas(),
      this.undecided.length ? sheet("Half messages without a decision", ["Batch", ">Rows", ">Bytes", ">Age", ">Reviews"],
        this.undecided.map(h => [num(h.batch_no), num(h.count), bytes(h.bytes), ago(h.received_at_us), num(h.reviews)]), "None.") : null,
      this.tables(),
      b.leases.length ? sheet("Snapshots in use", ["Holder", ">Offset", ">Kept for"],
        b.leases.map(l => [l.holder || "no name", num(l.offset), span(l.left_s)]), "None.") : null,
      el("details", null, el("summary", null, "Counters and positions"),
        sheet("Positions", ["Name", ">Value"], [["epoch", num(b.epoch)], ["last batch", num(b.last_batch)], ["last sequence", num(b.last_sequence)],
          ["log starts at offset", num(b.log_start)], ["full data up to offset", num(b.materialised_offset)],
          ...b.consumers.map(c => ["acknowledged by " + c.group, num(c.acknowledged)])], ""),
        sheet("Counters", ["Name", ">Value"],
          Object.entries(b.counters).sort().map(([name, value]) => [name.replaceAll("_", " "), num(value)]), "Nothing counted yet.")));
  }
}
