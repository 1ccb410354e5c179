// Cases against a running server, one after the other: what the scripts for Node share.
import { parseArgs } from "node:util";

export const { values: args } = parseArgs({
  options: {
    "base-url": { type: "string", default: "http://localhost:8000/v1" },
    "api-key": { type: "string", default: "none" },
    model: { type: "string" },
  },
});

/** Runs functions by their names, prints how many passed, and sets the exit status. */
export async function run(cases) {
  let failed = 0;
  for (const [name, f] of Object.entries(cases)) {
    try {
      await f();
      console.log(`ok      ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${name}\n${error.stack}`);
    }
  }
  console.log(`${Object.keys(cases).length - failed} passed, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}
