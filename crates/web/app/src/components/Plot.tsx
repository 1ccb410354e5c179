/** Lines over time, the newest at the right. */

export interface Line {
  name: string;
  values: number[];
}

interface Props {
  title: string;
  lines: Line[];
  /** Points of the whole width. */
  width: number;
  /** The top of the plot, or what the largest value needs. */
  max?: number;
  show: (n: number) => string;
}

const HEIGHT = 100;

function path(values: number[], width: number, max: number): string {
  const from = width - values.length;
  const points = values.map((value, at) => `${from + at},${(HEIGHT - (value / max) * (HEIGHT - 4) - 1).toFixed(1)}`);
  return points.length > 1 ? `M${points.join("L")}` : "";
}

export function Plot({ title, lines, width, max, show }: Props) {
  const top = max ?? Math.max(1e-9, ...lines.flatMap((line) => line.values)) * 1.15;
  const latest = lines.map((line) => ({ name: line.name, now: show(line.values.at(-1) ?? 0) }));
  const said = latest.map(({ name, now }) => `${name} ${now}`).join(", ");
  return (
    <figure class="plot">
      <figcaption>
        <h2>{title}</h2>
        <dl>
          {latest.map(({ name, now }, at) => (
            <div key={name}>
              <dt class={`key line-${at}`}>{name}</dt>
              <dd>{now}</dd>
            </div>
          ))}
        </dl>
      </figcaption>
      <svg viewBox={`0 0 ${width - 1} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${title}: ${said}`}>
        {[0.25, 0.5, 0.75].map((part) => (
          <line key={part} class="grid" x1="0" x2={width} y1={HEIGHT * part} y2={HEIGHT * part} />
        ))}
        {lines.map((line, at) => (
          <path key={line.name} class={`line line-${at}`} d={path(line.values, width, top)} />
        ))}
      </svg>
    </figure>
  );
}
