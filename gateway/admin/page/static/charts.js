// The last five minutes, as small areas: totals become rates, levels stay levels.

import { byId, setText } from "./dom.js";
import { bytes, count, percent, short, whole } from "./format.js";

const SPAN_SECONDS = 300;
//: As the gateway's own history: a point each five seconds.
const POINT_SECONDS = 4.5;
const WIDTH = 300;
const HEIGHT = 48;
const SVG = "http://www.w3.org/2000/svg";

export class Charts {
  #points = [];

  /** The history that the gateway had; each point as `#pointOf` makes them. */
  begin(points) {
    this.#points = points;
  }

  show(overview) {
    const now = pointOf(overview);
    const last = this.#points.at(-1);
    const points = [...this.#points.filter((point) => point.at > now.at - SPAN_SECONDS), now];
    if (!last || now.at - last.at >= POINT_SECONDS) this.#points = points;
    const { pool, totals } = overview;

    const saved = rates(points, (one, before) => one.loaded_tokens - before.loaded_tokens);
    const given = rates(points, (one, before) => one.prompt_tokens - before.prompt_tokens);
    draw("saved", saved, "tokens a second", short);
    const share = recent(given) ? `${percent(Math.min(1, recent(saved) / recent(given)))} of prompts` : "no prompts now";
    setText(byId("saved-more"), `${share} · ${short(totals.loaded_tokens)} in all`);

    const hits = shares(points);
    draw("hits", hits, "of the tokens looked up", percent, 1);
    setText(byId("hits-more"), `${short(totals.hit_tokens)} of ${short(totals.lookup_tokens)} tokens in all`);

    const used = points.map((point) => [point.at, pool.pool_bytes ? point.used_bytes / pool.pool_bytes : 0]);
    draw("pool", used, "of the pool", percent, 1);
    const rest = [
      `${bytes(pool.pool_bytes)}, ${count(pool.ready, "chunk")}`,
      pool.quarantined_bytes ? `${bytes(pool.quarantined_bytes)} quarantined` : "",
      totals.evictions ? `${short(totals.evictions)} evicted` : "",
    ];
    setText(byId("pool-more"), rest.filter(Boolean).join(" · "));

    draw("pending", points.map((point) => [point.at, point.pending]), "pending operations", whole);
    const moved = (of) => `${bytes(recent(rates(points, (one, before) => one[of] - before[of])))}/s`;
    setText(byId("pending-more"), `stores ${moved("stored_bytes")} · retrieves ${moved("retrieved_bytes")}`);
  }
}

function pointOf({ at, boot_id, totals, pool, pending }) {
  return { at, boot_id, totals, used_bytes: pool.pool_bytes - pool.free_bytes, pending };
}

/** Time and value a second of each pair of neighbours; a new boot begins anew. */
function rates(points, differenceOf) {
  return pairs(points).map(([before, point]) => [
    point.at,
    Math.max(0, differenceOf(point.totals, before.totals) / (point.at - before.at)),
  ]);
}

/** Hits of what was looked up between two neighbours; nothing looked up is no point. */
function shares(points) {
  return pairs(points)
    .map(([before, point]) => [
      point.at,
      (point.totals.hit_tokens - before.totals.hit_tokens) / (point.totals.lookup_tokens - before.totals.lookup_tokens),
    ])
    .filter(([, share]) => Number.isFinite(share));
}

/** Neighbours of one boot. The newest point may be a moment after the one before: its partner is the one before that. */
function pairs(points) {
  return points
    .map((point, i) => [points[point.at - points[i - 1]?.at < POINT_SECONDS ? i - 2 : i - 1], point])
    .filter(([before, point]) => before && point.boot_id === before.boot_id);
}

const recent = (series) => series.at(-1)?.[1] ?? 0;

/** Draws `[time, value]` pairs into the chart of this name, and says in words what it shows. */
function draw(name, series, unit, format, top = 0) {
  const svg = byId(`${name}-chart`);
  const values = series.map(([, value]) => value);
  const highest = Math.max(top, ...values, 0);
  const newest = series.at(-1)?.[0] ?? 0;
  const x = (at) => (WIDTH * (1 - (newest - at) / SPAN_SECONDS)).toFixed(1);
  const y = (value) => (HEIGHT - 1 - (HEIGHT - 3) * (highest ? value / highest : 0)).toFixed(1);
  const line = series.map(([at, value]) => `${x(at)},${y(value)}`).join(" L");
  if (!svg.firstChild) {
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.append(path("area"), path("line"));
  }
  svg.children[0].setAttribute("d", line && `M${x(series[0][0])},${HEIGHT} L${line} L${x(newest)},${HEIGHT} Z`);
  svg.children[1].setAttribute("d", line && `M${line}`);
  const now = series.length ? format(values.at(-1)) : "–";
  setText(byId(name), now);
  const peak = values.length ? `, highest ${format(Math.max(...values))}` : "";
  svg.setAttribute("aria-label", `${unit}: now ${now}${peak} in the last five minutes`);
}

function path(name) {
  const element = document.createElementNS(SVG, "path");
  element.setAttribute("class", name);
  return element;
}
