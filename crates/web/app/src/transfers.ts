/** Loads and downloads that run, whatever page is shown. */

import { signal } from "@preact/signals";
import * as api from "./api";
import { refreshModels, say, text } from "./store";
import type { Progress } from "./types";

export interface Transfer {
  progress: Progress;
  error: string;
  /** What ends a download; a load ends by itself. */
  stop: AbortController | null;
}

/** By the names of models. */
export const transfers = signal<ReadonlyMap<string, Transfer>>(new Map());

function put(name: string, transfer: Transfer | null): void {
  const next = new Map(transfers.value);
  if (transfer) next.set(name, transfer);
  else next.delete(name);
  transfers.value = next;
}

export function running(name: string): boolean {
  const transfer = transfers.value.get(name);
  return transfer !== undefined && transfer.error === "";
}

async function follow(name: string, steps: AsyncGenerator<Progress>, stop: AbortController | null): Promise<boolean> {
  put(name, { progress: { text: "waiting", completed: 0, total: 0 }, error: "", stop });
  try {
    for await (const progress of steps) put(name, { progress, error: "", stop });
    put(name, null);
    return true;
  } catch (error) {
    const stopped = stop?.signal.aborted === true;
    put(name, stopped ? null : { progress: { text: "", completed: 0, total: 0 }, error: text(error), stop });
    return false;
  } finally {
    await refreshModels();
  }
}

export async function load(name: string): Promise<void> {
  if (!running(name)) await follow(name, api.loadModel(name), null);
}

export async function download(name: string): Promise<void> {
  if (running(name)) return;
  const stop = new AbortController();
  if (await follow(name, api.pull(name, stop.signal), stop)) say(`${name} is downloaded`);
}

/** Does something with a model that takes no progress. */
export async function change(name: string, work: (name: string) => Promise<void>): Promise<void> {
  put(name, null);
  try {
    await work(name);
  } catch (error) {
    put(name, { progress: { text: "", completed: 0, total: 0 }, error: text(error), stop: null });
  }
  await refreshModels();
}

/** Takes an error or a stopped download away. */
export function forget(name: string): void {
  transfers.value.get(name)?.stop?.abort();
  put(name, null);
}
