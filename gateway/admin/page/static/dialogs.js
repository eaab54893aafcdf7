// The two questions the page asks: whether to do something, and the token.

import { Refused, token } from "./api.js";
import { byId, make } from "./dom.js";

let asking = null;

/** Asks for the token; true when one was given. Whoever asks while it is asked for has the same answer. */
export function askForToken(error = "") {
  return (asking ??= ask(error).finally(() => (asking = null)));
}

async function ask(error) {
  const value = byId("token-value");
  value.value = "";
  byId("token-error").textContent = error;
  const isGiven = await open(byId("token"), byId("token-cancel"));
  if (isGiven) token.set(value.value.trim());
  value.value = "";
  byId("forget-token").hidden = !token.get();
  return isGiven;
}

/**
 * Asks before something is done, and does it: `perform(values)` with a value for each field, an input or, with `options`
 * of value and text, a choice. A refusal is shown in the
 * dialog, which stays open; where a token is needed it is asked for in between. True when it was done.
 */
export async function confirm({ title, text, verb, fields = [], perform }) {
  byId("confirm-title").textContent = title;
  byId("confirm-text").textContent = text;
  byId("confirm-do").textContent = verb;
  const inputs = fields.map(({ name, label, options, ...attributes }) => [
    name,
    options
      ? make("select", { id: `field-${name}`, name }, ...options.map(([value, text]) => make("option", { value }, text)))
      : make("input", { id: `field-${name}`, name, ...attributes }),
    label,
  ]);
  byId("confirm-fields").replaceChildren(
    ...inputs.flatMap(([name, input, label]) => [make("label", { for: `field-${name}` }, label), input]),
  );
  let error = "";
  let isAgreed = false;
  for (;;) {
    byId("confirm-error").textContent = error;
    isAgreed ||= await open(byId("confirm"), byId("confirm-cancel"));
    if (!isAgreed) return false;
    try {
      await perform(Object.fromEntries(inputs.map(([name, input]) => [name, input.value.trim()])));
      return true;
    } catch (refused) {
      if (!(refused instanceof Refused)) throw refused;
      error = refused.message;
      isAgreed = refused.status === 401 && (await askForToken(token.get() ? error : ""));
    }
  }
}

/** Shows a dialog until it is answered; Escape and Cancel are no. */
function open(dialog, cancel) {
  return new Promise((resolve) => {
    dialog.returnValue = "";
    cancel.onclick = () => dialog.close("");
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
    dialog.showModal();
  });
}
