// The page: what is shown when the gateway speaks, when it is silent, and what the buttons do.

import { call, token } from "./api.js";
import { Charts } from "./charts.js";
import { askForToken, confirm } from "./dialogs.js";
import { byId, setText } from "./dom.js";
import { canResume, showEngines, showTransfers } from "./engines.js";
import { follow } from "./feed.js";
import { clock, seconds } from "./format.js";
import { showGateway } from "./gateway.js";
import { setOne, showSwitches, takeAway } from "./switches.js";

const charts = new Charts();
let overview = null; // the last one
let heardAt = 0; // by this machine's clock, when it came

// -- the gateway speaks, or does not

follow({
  event(name, document) {
    if (name === "history") charts.begin(document.points);
    if (name === "overview") show(document);
    if (name === "unanswered") becomeOld(`The gateway's core does not answer (${document.reason})`);
  },
  lost: becomeOld,
  async refused() {
    const again = byId("give-token");
    while (!(await askForToken(token.get() ? "This is not the admin token." : ""))) {
      again.hidden = false;
      await new Promise((resolve) => (again.onclick = resolve));
    }
    again.hidden = true;
  },
});

function show(document) {
  const before = overview;
  overview = document;
  heardAt = Date.now();
  announce(before);
  window.document.body.className = "";
  byId("old").hidden = true;
  setText(byId("link-text"), `Live, ${clock(document.at)}`);
  byId("drain").disabled = !["ready", "draining"].includes(document.state);
  byId("resume").disabled = !["draining", "drained"].includes(document.state);
  showGateway(document);
  charts.show(document);
  showEngines(document, changeEngine);
  showTransfers(document, byId("filter").value.trim());
  showSwitches(document, (one) => ask(takeAway(one), "The switch is taken away."));
}

/** Says aloud what changed, and only that: numbers change every second. */
function announce(before) {
  const line = overview.verdict.line;
  if (document.body.classList.contains("old") && before) say("The gateway answers again.");
  else if (before && (before.state !== overview.state || before.health !== overview.health)) say(line);
}

function say(sentence) {
  setText(byId("said"), sentence);
}

function becomeOld(reason) {
  const isNew = !document.body.classList.contains("old");
  document.body.className = overview ? "old" : "old waiting";
  byId("old").hidden = false;
  byId("old").dataset.reason = reason;
  setText(byId("link-text"), "Not live");
  document.title = "✖ kvgate, not live";
  for (const id of ["drain", "resume"]) byId(id).disabled = true;
  if (!overview) setText(byId("verdict-line"), "Nothing is known of the gateway yet.");
  tick();
  if (isNew) say(`${reason}. What is shown is old.`);
}

function tick() {
  const old = byId("old");
  if (old.hidden) return;
  const age = overview ? `; all values are ${seconds((Date.now() - heardAt) / 1000)} old` : "";
  setText(old, `${old.dataset.reason}${age}. Trying again…`);
}

setInterval(tick, 1000);

// -- what the buttons do

const reason = { name: "reason", label: "Reason, for the audit log", maxlength: "500", autocomplete: "off" };
const deadline = {
  name: "deadline",
  label: "Deadline in seconds; what is left then is cut (empty: as configured)",
  type: "number",
  min: "0",
  max: "86400",
  step: "any",
  inputmode: "decimal",
};

const drainBody = (values) => ({
  reason: values.reason,
  ...(values.deadline === "" ? {} : { deadline_seconds: Number(values.deadline) }),
});

async function ask(question, done) {
  if (await confirm(question)) {
    say(done);
    byId("verdict-line").focus();
  }
}

byId("drain").addEventListener("click", () =>
  ask(
    {
      title: overview.state === "draining" ? "Join the drain under way?" : "Drain the gateway?",
      text: "It takes no new work and lets what is under way finish. Engines go on: they compute what they would have loaded.",
      verb: "Drain",
      fields: [deadline, reason],
      perform: (values) => call("POST", "/v1/drain", drainBody(values)),
    },
    "The drain has begun.",
  ),
);

byId("resume").addEventListener("click", () =>
  ask(
    {
      title: "Resume the gateway?",
      text: "It takes new work again, at once, from all engines.",
      verb: "Resume",
      fields: [reason],
      perform: (values) => call("POST", "/v1/resume", { reason: values.reason }),
    },
    "The gateway is resumed.",
  ),
);

function changeEngine(engine) {
  const path = `/v1/engines/${encodeURIComponent(engine.name)}`;
  const isBack = canResume(engine);
  ask(
    {
      title: `${isBack ? "Resume" : "Drain"} engine ${engine.name}?`,
      text: isBack ? "The gateway takes its work again." : "The gateway takes no new work from it; the others go on.",
      verb: isBack ? "Resume" : "Drain",
      fields: isBack ? [reason] : [deadline, reason],
      perform: (values) =>
        isBack ? call("POST", `${path}/resume`, { reason: values.reason }) : call("POST", `${path}/drain`, drainBody(values)),
    },
    `${isBack ? "Resumed" : "Draining"} engine ${engine.name}.`,
  );
}

byId("switch-off").addEventListener("click", () => ask(setOne, "The switch is set."));

byId("filter").addEventListener("input", ({ target }) => overview && showTransfers(overview, target.value.trim()));

byId("forget-token").hidden = !token.get();
byId("forget-token").addEventListener("click", ({ target }) => {
  token.forget();
  target.hidden = true;
  say("The token is forgotten.");
});
