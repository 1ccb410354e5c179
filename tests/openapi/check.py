"""Random requests, sound ones and others, against the server's own description of its API.

Every response must be one that /openapi.json describes: its status, its content type and its body's
schema; none may be a 5xx. A server without an API key is asked, one with a key where it is given.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection"
)


def count(report):
    """Cases in the events that schemathesis wrote."""
    cases = 0
    for line in report.read_text().splitlines():
        finished = json.loads(line).get("ScenarioFinished")
        if finished:
            # A scenario that was broken off has none.
            cases += len(finished["recorder"].get("cases", ()))
    return cases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True, help="such as http://localhost:8000/v1")
    parser.add_argument("--api-key")
    parser.add_argument("--cases", type=int, default=400, help="at least so many in all")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    server = args.base_url.removesuffix("/").removesuffix("/v1")
    key = ["-H", f"Authorization: Bearer {args.api_key}"] if args.api_key else []
    cases = round_ = 0
    while cases < args.cases:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.ndjson"
            # Every round has other cases.
            command = [
                sys.executable, "-m", "schemathesis.cli", "run", f"{server}/openapi.json",
                "--checks", CHECKS, "--phases", "fuzzing" if round_ else "coverage,fuzzing",
                "--max-examples", str(max(5, args.cases // 40)), "--seed", str(args.seed + round_),
                "--suppress-health-check", "all", "--request-timeout", "60", "--warnings", "off",
                "--report", "ndjson", "--report-ndjson-path", str(report), *key,
            ]
            hooks = {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(Path(__file__).parent)}
            done = subprocess.run(command, cwd=folder, env=os.environ | hooks, check=False)
            new = count(report) if report.is_file() else 0
        cases, round_ = cases + new, round_ + 1
        if done.returncode or not new:
            print(f"{cases} passed, 1 failed")
            return 1
    print(f"{cases} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
