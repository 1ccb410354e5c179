import { bytes } from "../format";
import { forget, transfers } from "../transfers";

/** How far a load or a download is, or why it failed. */
export function TransferOf({ name }: { name: string }) {
  const transfer = transfers.value.get(name);
  if (!transfer) return null;
  const { progress, error, stop } = transfer;
  if (error) {
    return (
      <p class="error" role="alert">
        {error}
      </p>
    );
  }
  const { text, completed, total } = progress;
  return (
    <div class="transfer">
      <span role="status">
        {text}
        {total > 0 ? `, ${bytes(completed)} of ${bytes(total)}` : ""}
      </span>
      <progress aria-label={`Progress of ${name}`} {...(total > 0 && { value: completed, max: total })} />
      {stop && (
        <button type="button" onClick={() => forget(name)}>
          Stop
        </button>
      )}
    </div>
  );
}
