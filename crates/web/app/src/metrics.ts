/** What `/metrics` says. */

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

export function parse(text: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split("\n")) {
    const found = /^([\w:]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const [, name = "", labels = "", value = ""] = found;
    samples.push({ name, labels: parseLabels(labels), value: Number(value) });
  }
  return samples;
}

function parseLabels(text: string): Record<string, string> {
  const pairs = text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g);
  return Object.fromEntries(Array.from(pairs, ([, name, value]) => [name, value?.replace(/\\(.)/g, "$1") ?? ""]));
}

/** One reading of the page. */
export class Reading {
  private readonly values = new Map<string, number>();

  constructor(
    readonly samples: Sample[],
    readonly at: number,
  ) {
    for (const { name, value } of samples) {
      if (!this.values.has(name)) this.values.set(name, value);
    }
  }

  get(name: string): number {
    return this.values.get(name) ?? 0;
  }

  has(name: string): boolean {
    return this.values.has(name);
  }

  label(name: string, label: string): string {
    return this.samples.find((sample) => sample.name === name)?.labels[label] ?? "";
  }

  all(name: string): Sample[] {
    return this.samples.filter((sample) => sample.name === name);
  }

  /** How much a counter grew in a second. */
  rate(name: string, before: Reading): number {
    const seconds = (this.at - before.at) / 1000;
    return seconds > 0 ? Math.max(0, this.get(name) - before.get(name)) / seconds : 0;
  }
}
