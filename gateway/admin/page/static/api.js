// Calls of the admin API. The token is held by this tab alone and goes out in a header only.

const KEY = "kvgate.token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** An answer that is no success: the sentence of its problem document, and its status. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const headers = () => (token.get() ? { Authorization: `Bearer ${token.get()}` } : {});

/** The document that a call answers with; null where there is none. */
export async function call(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: {
      ...headers(),
      "X-Requested-By": "page",
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    },
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
  }).catch(() => {
    throw new Refused(0, "The gateway cannot be reached. Whether it was done is unknown.");
  });
  if (!answer.ok) throw await refusal(answer);
  return answer.status === 204 ? null : answer.json();
}

export async function refusal(answer) {
  const problem = await answer.json().catch(() => ({}));
  return new Refused(answer.status, problem.detail ?? `The gateway answered ${answer.status}.`);
}
