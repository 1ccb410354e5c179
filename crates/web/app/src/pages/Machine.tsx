import { useEffect, useState } from "preact/hooks";
import { metricsText } from "../api";
import { Facts } from "../components/Facts";
import { Plot, type Line } from "../components/Plot";
import { bytes, milliseconds, rate, whole } from "../format";
import { parse, Reading } from "../metrics";
import { text } from "../store";
import { Sheet } from "./Header";

const EVERY = 1000;
/** Seconds that the plots show, at first and at most. */
const SHORTEST = 60;
const LONGEST = 240;

/** Reads the metrics every second while the page is seen. */
function useReadings(): { readings: Reading[]; error: string } {
  const [readings, setReadings] = useState<Reading[]>([]);
  const [error, setError] = useState("");
  useEffect(() => {
    const stopper = new AbortController();
    const read = async () => {
      if (document.hidden) return;
      try {
        const reading = new Reading(parse(await metricsText(stopper.signal)), performance.now());
        setReadings((old) => [...old, reading].slice(-LONGEST - 1));
        setError("");
      } catch (failed) {
        if (!stopper.signal.aborted) setError(text(failed));
      }
    };
    void read();
    const timer = setInterval(() => void read(), EVERY);
    return () => {
      clearInterval(timer);
      stopper.abort();
    };
  }, []);
  return { readings, error };
}

/** Values of neighbouring readings. */
function rates(readings: Reading[], name: string): number[] {
  return readings.slice(1).map((reading, at) => reading.rate(name, readings[at] ?? reading));
}

const values = (readings: Reading[], name: string): number[] => readings.map((reading) => reading.get(name));

export function Machine() {
  const { readings, error } = useReadings();
  const now = readings.at(-1);
  const width = Math.max(SHORTEST, Math.min(readings.length, LONGEST));
  const line = (name: string, metric: string): Line => ({ name, values: values(readings, metric) });
  const pace = (name: string, metric: string): Line => ({ name, values: rates(readings, metric) });
  const kv = { name: "KV cache", values: values(readings, "vllm:kv_cache_usage_perc").map((part) => part * 100) };
  return (
    <Sheet title="Machine">
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      <div class="plots">
        <Plot
          title="Tokens a second"
          width={width}
          show={rate}
          lines={[pace("written", "vllm:generation_tokens_total"), pace("read", "vllm:prompt_tokens_total")]}
        />
        <Plot title="KV cache in use" width={width} max={100} show={(n) => `${n.toFixed(1)} %`} lines={[kv]} />
        <Plot
          title="Memory"
          width={width}
          show={bytes}
          lines={[
            line("process", "process_resident_memory_bytes"),
            line("KV cache", "taper:kv_cache_used_bytes"),
            line("weights", "taper:weight_bytes"),
          ]}
        />
        <Plot
          title="Requests"
          width={width}
          show={whole}
          lines={[line("running", "vllm:num_requests_running"), line("waiting", "vllm:num_requests_waiting")]}
        />
        {now?.has("taper:expert_slots") && (
          <Plot
            title="Experts a second"
            width={width}
            show={rate}
            lines={[pace("in memory", "taper:expert_hits_total"), pace("read", "taper:expert_misses_total")]}
          />
        )}
      </div>
      {now && <Totals now={now} />}
    </Sheet>
  );
}

function part(of: number, all: number): string {
  return all > 0 ? `${((100 * of) / all).toFixed(0)} %` : "–";
}

function Totals({ now }: { now: Reading }) {
  const mean = (name: string): string => {
    const count = now.get(`${name}_count`);
    return count > 0 ? milliseconds((1000 * now.get(`${name}_sum`)) / count) : "–";
  };
  const started = now.get("process_start_time_seconds");
  const ended = now.all("vllm:request_success_total").reduce((sum, sample) => sum + sample.value, 0);
  const rows: [string, string][] = [
    ["Requests answered", whole(ended)],
    ["Tokens written", whole(now.get("vllm:generation_tokens_total"))],
    ["Tokens read", whole(now.get("vllm:prompt_tokens_total"))],
    ["Prompt tokens found in the cache", part(now.get("vllm:prefix_cache_hits_total"), now.get("vllm:prefix_cache_queries_total"))],
    ["Drafted tokens that were right", part(now.get("vllm:spec_decode_num_accepted_tokens_total"), now.get("vllm:spec_decode_num_draft_tokens_total"))],
    ["Mean time to the first token", mean("vllm:time_to_first_token_seconds")],
    ["Mean time between tokens", mean("vllm:inter_token_latency_seconds")],
    ["Preempted sequences", whole(now.get("vllm:num_preemptions_total"))],
    ["Running since", started > 0 ? new Date(started * 1000).toLocaleString("en") : "–"],
  ];
  return <Facts title="Since the start" facts={rows} />;
}
