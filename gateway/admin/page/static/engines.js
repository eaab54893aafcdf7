// Engines, the worst first, and the operations that they told of.

import { byId, keepList, make, setText } from "./dom.js";
import { count, seconds, whole } from "./format.js";

const cell = (name = "") => make("td", name ? { class: name } : {});
const state = () => make("td", { class: "state" }, make("span", { class: "dot", "aria-hidden": "true" }), make("span"), make("small"));

/** `onChange(engine)` is called for the button of an engine. */
export function showEngines({ engines, at }, onChange) {
  byId("engines-none").hidden = engines.length > 0;
  byId("engines").parentElement.hidden = engines.length === 0;
  const here = engines.filter((engine) => engine.parties).length;
  setText(byId("engines-count"), engines.length ? `${here} here${here < engines.length ? `, ${engines.length - here} gone` : ""}` : "");
  const body = byId("engines").tBodies[0];
  keepList(body, engines, ({ name }) => name, (engine) => newEngine(engine, onChange), (row, engine) => {
    row.engine = engine;
    row.dataset.severity = engine.state === "gone" ? "none" : engine.severity;
    const [name, standing, stores, retrieves, events, oldest, heartbeat, change] = row.cells;
    setText(name.children[0], engine.name);
    setText(name.children[1], engine.model);
    setText(standing.children[1], engine.fenced ? "removed" : engine.state);
    setText(standing.children[2], engine.trouble);
    setText(stores, whole(engine.pending_stores));
    setText(retrieves, whole(engine.pending_retrieves));
    setText(events, whole(engine.retained_events));
    setText(oldest, engine.oldest_pending_at ? seconds(Math.max(0, at - engine.oldest_pending_at)) : "–");
    setText(heartbeat, engine.last_heartbeat_at ? `${seconds(Math.max(0, at - engine.last_heartbeat_at))} ago` : "–");
    const verb = canResume(engine) ? "Resume" : "Drain";
    setText(change.firstChild, `${verb}…`);
    change.firstChild.setAttribute("aria-label", `${verb} engine ${engine.name}`);
    change.firstChild.hidden = engine.state === "gone";
  });
}

export const canResume = ({ state, fenced }) => fenced || state === "draining" || state === "drained";

function newEngine(engine, onChange) {
  const button = make("button", { type: "button", class: "plain" }, "");
  const row = make(
    "tr",
    {},
    make("th", { scope: "row" }, make("span"), make("small")),
    state(),
    ...["number", "number", "number", "number wide", "number wide"].map(cell),
    make("td", { class: "wide" }, button),
  );
  button.addEventListener("click", () => onChange(row.engine));
  return row;
}

/** Operations of the request or engine that `filter` names, or a part of it. */
export function showTransfers({ transfers, pending, at }, filter) {
  const wanted = transfers.filter((one) => !filter || one.request_id.includes(filter) || one.engine.includes(filter));
  const shownPending = transfers.filter((one) => one.state === "pending").length;
  const isCut = pending > shownPending ? `, the oldest ${whole(shownPending)} shown` : "";
  setText(byId("transfers-count"), `${whole(pending)} pending${isCut}, ${count(transfers.length - shownPending, "settled one")}`);
  byId("transfers-none").hidden = wanted.length > 0;
  byId("transfers").parentElement.hidden = wanted.length === 0;
  const keyOf = (one) => `${one.party} ${one.number}`;
  keepList(byId("transfers").tBodies[0], wanted, keyOf, newTransfer, (row, one) => {
    row.dataset.severity = severityOf(one);
    const [request, kind, outcome, chunks, took, ended, engine] = row.cells;
    setText(request, one.request_id);
    setText(kind, one.kind);
    setText(outcome.children[1], one.outcome ?? one.phase);
    setText(outcome.children[2], one.reason.replaceAll("_", " "));
    setText(chunks, `${one.chunks_done}/${one.chunks}`);
    setText(took, seconds(one.age_seconds));
    setText(ended, one.settled_at ? `${seconds(Math.max(0, at - one.settled_at))} ago` : "pending");
    setText(engine, one.engine);
  });
}

const WELL = new Set(["stored", "loaded"]);
const BADLY = new Set(["failed", "expired"]);

function severityOf({ outcome, age_seconds }) {
  if (outcome === null) return age_seconds > 40 ? "critical" : "notice";
  if (WELL.has(outcome)) return "good";
  return BADLY.has(outcome) ? "critical" : "warning";
}

function newTransfer() {
  return make(
    "tr",
    {},
    make("th", { scope: "row", class: "id" }),
    cell("wide"),
    state(),
    ...["number wide", "number", "number", "wide"].map(cell),
  );
}
