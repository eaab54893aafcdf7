// The gateway itself: verdict, findings, drain, checks.

import { byId, keepList, make, setText } from "./dom.js";
import { bytes, clock, count, seconds } from "./format.js";

export function showGateway(overview) {
  const { verdict, checks, at } = overview;
  byId("verdict").dataset.severity = verdict.severity;
  setText(byId("verdict-line"), verdict.line);
  setText(byId("where"), overview.run_dir);
  document.title = overview.ready && verdict.severity === "good" ? "kvgate" : `${mark(verdict.severity)} kvgate, ${overview.state}`;
  setText(byId("facts"), `State ${overview.state}, health ${overview.health}, up ${seconds(at - overview.started_at)}.`);
  keepList(byId("findings"), verdict.findings, ({ name }) => name, newFinding, (item, finding) => {
    item.dataset.severity = finding.severity;
    setText(item.children[0], finding.name);
    setText(item.children[1], finding.detail);
    setText(item.children[2].lastChild, finding.next_step);
  });
  keepList(byId("checks"), checks, ({ name }) => name, newCheck, (item, check) => {
    item.dataset.severity = check.ok ? "good" : check.critical ? "critical" : "warning";
    setText(item.children[1], check.name);
    setText(item.children[2], check.ok ? `holds, ${seconds(check.age_seconds)} ago` : check.reason || "failed");
  });
  setText(byId("about"), `kvgate ${overview.version} · boot ${overview.boot_id.slice(0, 8)} · pool ${bytes(overview.pool.pool_bytes)}`);
  showDrain(overview);
}

const mark = (severity) => ({ good: "●", notice: "◐", warning: "▲", critical: "✖" })[severity];

const newFinding = () => make("li", {}, make("strong"), make("span"), make("span", { class: "next" }, "Next: ", make("span")));
const newCheck = () => make("li", {}, make("span", { class: "dot", "aria-hidden": "true" }), make("strong"), make("span"));

function showDrain({ drain, at, state }) {
  byId("drain-card").hidden = !drain;
  if (!drain) return;
  const { operations, leases } = drain.remaining;
  const isOver = drain.finished_at !== null;
  const progress = byId("drain-progress");
  progress.hidden = isOver;
  const ended = drain.done + drain.aborted;
  const left = operations + leases;
  progress.max = Math.max(1, ended + left);
  progress.value = left ? ended : progress.max;
  const who = `by ${drain.requested_by}${drain.reason ? `: ${drain.reason}` : ""}`;
  setText(byId("drain-title"), isOver ? (state === "ready" ? "The last drain" : "Drained") : "Draining");
  const counts = `${count(drain.done, "operation")} done, ${drain.aborted} cut`;
  setText(
    byId("drain-text"),
    isOver
      ? `${drain.outcome.replaceAll("_", " ")} in ${seconds(drain.finished_at - drain.requested_at)}, at ${clock(drain.finished_at)}: ${counts} (${who})`
      : `${count(operations, "operation")} and ${count(leases, "lease")} left, ${counts}; ${seconds(Math.max(0, drain.deadline_at - at))} to the deadline (${who})`,
  );
}
