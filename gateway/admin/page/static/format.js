// Numbers as people read them.

export const whole = (number) => Math.round(number).toLocaleString("en");

/** At most four characters and a unit: 12.3k, 4.5M. */
export function short(number) {
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= size) return `${(number / size).toFixed(number >= 100 * size ? 0 : 1)}${unit}`;
  }
  return number >= 10 || Number.isInteger(number) ? String(Math.round(number)) : number.toFixed(1);
}

export function bytes(number) {
  let unit = "B";
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (number < 1024) break;
    number /= 1024;
    unit = larger;
  }
  return `${unit === "B" || number >= 100 ? Math.round(number) : number.toFixed(1)} ${unit}`;
}

export function seconds(number) {
  if (number < 0.0005) return "0 s";
  if (number < 1) return `${Math.round(1000 * number)} ms`;
  if (number < 60) return `${number.toFixed(number < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(number / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(number % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 24 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

export const count = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

export const clock = (at) => new Date(1000 * at).toLocaleTimeString("en-GB");
