// What operators have switched off, for good: it outlives restarts, drains and resumes.

import { call } from "./api.js";
import { byId, keepList, make, setText } from "./dom.js";
import { seconds } from "./format.js";

const MEANINGS = {
  on: "stores and loads",
  no_store: "loads, stores nothing",
  no_load: "stores, loads nothing",
  off: "neither stores nor loads",
};
const whom = ({ scope, name }) => (scope === "node" ? "every engine of this node" : `${scope} ${name}`);

/** `onChange(one)` is called for the button of a switch. A gateway without switches shows no section. */
export function showSwitches({ switches, at }, onChange) {
  byId("switches").hidden = !switches;
  if (!switches) return;
  byId("switches-none").hidden = switches.length > 0;
  const keyOf = ({ scope, name }) => `${scope} ${name}`;
  keepList(byId("switches").querySelector("ul"), switches, keyOf, (one) => newSwitch(one, onChange), (item, one) => {
    item.one = one;
    item.dataset.severity = one.mode === "on" ? "good" : "warning";
    setText(item.children[1], whom(one));
    setText(item.children[2], `${one.mode.replace("_", " ")}: ${MEANINGS[one.mode]}`);
    setText(item.children[3], one.since_at ? `for ${seconds(Math.max(0, at - one.since_at))}` : "as configured");
    item.lastChild.hidden = !one.since_at;
  });
}

function newSwitch(one, onChange) {
  const button = make("button", { type: "button", class: "plain", "aria-label": `Take away the switch of ${whom(one)}` }, "Take away…");
  const item = make("li", {}, make("span", { class: "dot", "aria-hidden": "true" }), make("strong"), make("span"), make("span"), button);
  button.addEventListener("click", () => onChange(item.one));
  return item;
}

const path = (scope, name) => `/v1/switches/${scope}/${encodeURIComponent(scope === "node" ? "all" : name)}`;

/** What to ask before a switch is taken away. */
export const takeAway = (one) => ({
  title: `Take away the switch of ${whom(one)}?`,
  text: "What it forbids is done again, within a heartbeat.",
  verb: "Take away",
  perform: () => call("DELETE", path(one.scope, one.name)),
});

/** What to ask before one is set. */
export const setOne = {
  title: "Switch something off?",
  text: "It holds until it is taken away: over restarts, drains and resumes, and while the gateway is dead. Engines go on: they compute.",
  verb: "Switch off",
  fields: [
    { name: "scope", label: "For", options: [["node", "Every engine of this node"], ["model", "One model"], ["engine", "One engine"]] },
    { name: "name", label: "Name of the model or engine", autocomplete: "off", spellcheck: "false" },
    { name: "mode", label: "What it does then", options: ["off", "no_store", "no_load"].map((mode) => [mode, MEANINGS[mode]]) },
    { name: "reason", label: "Reason, for the audit log", maxlength: "500", autocomplete: "off" },
  ],
  perform: ({ scope, name, mode, reason }) => call("PUT", path(scope, name), { mode, reason }),
};
