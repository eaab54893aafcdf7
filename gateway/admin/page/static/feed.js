// The stream of GET /v1/events, for ever: read with fetch, because an EventSource would need the token in its address.

import { headers, refusal, Refused } from "./api.js";

//: The gateway sends something at least every 2.2 seconds: after this the connection is taken for dead.
const SILENCE_MS = 5000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10000;

/**
 * Calls `on.event(name, document)` for each event, `on.lost(reason)` once each time the stream ends, and awaits
 * `on.refused()` when a token is needed; connects again and again, waiting longer each time.
 */
export async function follow(on) {
  let wait = FIRST_WAIT_MS;
  for (;;) {
    try {
      await read((name, document) => {
        wait = FIRST_WAIT_MS;
        on.event(name, document);
      });
      on.lost("The gateway ended the connection");
    } catch (error) {
      on.lost(error instanceof Refused ? error.message : "The gateway cannot be reached");
      if (error.status === 401) {
        await on.refused();
        continue;
      }
    }
    await pause(wait * (0.75 + Math.random() / 2));
    wait = Math.min(2 * wait, LONGEST_WAIT_MS);
  }
}

async function read(onEvent) {
  const watch = new AbortController();
  let timer = setTimeout(() => watch.abort(), SILENCE_MS);
  try {
    const answer = await fetch("/v1/events", { headers: headers(), cache: "no-store", signal: watch.signal });
    if (!answer.ok) throw await refusal(answer);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => watch.abort(), SILENCE_MS);
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const fields = Object.fromEntries(event.split("\n").map((line) => line.split(/: (.*)/s, 2)));
        onEvent(fields.event, JSON.parse(fields.data));
      }
    }
  } finally {
    clearTimeout(timer);
    watch.abort();
  }
}

/** Waits, or goes on at once when the page comes back into sight or the network is back. */
function pause(milliseconds) {
  return new Promise((resolve) => {
    const done = new AbortController();
    const end = () => (clearTimeout(timer), done.abort(), resolve());
    const timer = setTimeout(end, milliseconds);
    addEventListener("online", end, { signal: done.signal });
    document.addEventListener("visibilitychange", end, { signal: done.signal });
  });
}
