/** Numbers and times as people read them. */

import { say } from "./store";

const WHOLE = new Intl.NumberFormat("en");

export function whole(n: number): string {
  return WHOLE.format(Math.round(n));
}

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; n >= 1024 && at < units.length - 1; at += 1) n /= 1024;
  return `${n >= 100 || at === 0 ? Math.round(n) : n.toFixed(1)} ${units[at]}`;
}

/** Tokens in a few characters. */
export function short(n: number): string {
  if (n < 1000) return String(Math.round(n));
  if (n < 1e6) return `${n < 1e4 ? (n / 1000).toFixed(1) : Math.round(n / 1000)}k`;
  return `${(n / 1e6).toFixed(1)}M`;
}

export function rate(n: number): string {
  return n >= 100 ? whole(n) : n.toFixed(1);
}

export function milliseconds(n: number): string {
  return n < 1000 ? `${Math.round(n)} ms` : `${(n / 1000).toFixed(1)} s`;
}

const DAY = 86_400_000;

/** The heading under which a conversation stands in the list. */
export function age(at: number, now = Date.now()): string {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (at >= midnight) return "Today";
  if (at >= midnight - DAY) return "Yesterday";
  if (at >= midnight - 7 * DAY) return "Last 7 days";
  if (at >= midnight - 30 * DAY) return "Last 30 days";
  return new Date(at).toLocaleDateString("en", { month: "long", year: "numeric" });
}

export async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages over plain HTTP have no clipboard.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Copied");
}
