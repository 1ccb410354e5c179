import { useId, useState } from "preact/hooks";

interface NumberProps {
  label: string;
  hint: string;
  value: number | null;
  min?: number;
  max?: number;
  step?: number;
  set: (value: number | null) => void;
}

/** A number, or nothing, which leaves it to the server. */
export function NumberField({ label, hint, value, min, max, step, set }: NumberProps) {
  const id = useId();
  const [text, setText] = useState(value === null ? "" : String(value));
  const [wrong, setWrong] = useState(false);
  // A preset may have changed it.
  const own = text.trim() === "" ? null : Number(text);
  const shown = wrong || own === value ? text : value === null ? "" : String(value);
  const write = (next: string) => {
    const number = Number(next);
    const bad = next.trim() !== "" && !inRange(number, min, max, step);
    setText(next);
    setWrong(bad);
    if (!bad) set(next.trim() === "" ? null : number);
  };
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        inputMode="decimal"
        placeholder="default"
        aria-describedby={`${id}-hint`}
        aria-invalid={wrong}
        value={shown}
        onInput={(event) => write(event.currentTarget.value)}
      />
      <small id={`${id}-hint`}>{hint}</small>
    </div>
  );
}

function inRange(n: number, min = -Infinity, max = Infinity, step = 0): boolean {
  return Number.isFinite(n) && n >= min && n <= max && (step !== 1 || Number.isInteger(n));
}

interface ChoiceProps<T extends string> {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  set: (value: T) => void;
}

export function Choice<T extends string>({ label, value, options, set }: ChoiceProps<T>) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} onChange={(event) => set(event.currentTarget.value as T)}>
        {options.map(([name, words]) => (
          <option key={name} value={name}>
            {words}
          </option>
        ))}
      </select>
    </div>
  );
}

interface TextProps {
  label: string;
  hint?: string;
  value: string;
  rows?: number;
  placeholder?: string;
  set: (value: string) => void;
}

export function TextField({ label, hint, value, rows, placeholder, set }: TextProps) {
  const id = useId();
  const shared = {
    id,
    value,
    placeholder,
    "aria-describedby": hint ? `${id}-hint` : undefined,
  };
  return (
    <div class={rows ? "field wide" : "field"}>
      <label for={id}>{label}</label>
      {rows ? (
        <textarea {...shared} rows={rows} onInput={(event) => set(event.currentTarget.value)} />
      ) : (
        <input {...shared} onInput={(event) => set(event.currentTarget.value)} />
      )}
      {hint && <small id={`${id}-hint`}>{hint}</small>}
    </div>
  );
}
