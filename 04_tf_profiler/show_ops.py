"""Show a profile as text: no browser and no network needed.

python show_ops.py LOGDIR
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
from tensorboard_plugin_profile.convert.raw_to_tool_data import xspace_to_tool_data


def read_tool(profile, tool):
    """One of the tables behind TensorBoard's Profile page, as Python data."""
    text, _ = xspace_to_tool_data([str(profile)], tool, {})
    return json.loads(text)


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python show_ops.py LOGDIR")
    logdir = Path(sys.argv[1])
    profiles = sorted(logdir.glob("plugins/profile/*/*.xplane.pb"))
    if not profiles:
        sys.exit(f"show_ops.py: no profile in {logdir}: name the folder that holds plugins/profile")
    print(profiles[-1])

    overview = {}
    for part in read_tool(profiles[-1], "overview_page^"):
        overview.update(part.get("p") or {})
    if float(overview.get("steptime_ms_average", 0)):
        print(f"average step {overview['steptime_ms_average']} ms")
    print(overview.get("statement", ""))

    table = read_tool(profiles[-1], "framework_op_stats^")[0]
    names = [column["label"] for column in table["cols"]]
    rows = [dict(zip(names, (cell["v"] for cell in row["c"]))) for row in table["rows"]]
    rows = [row for row in rows if row["Type"] != "IDLE"]
    total = sum(row["Total self-time (us)"] for row in rows)
    print(f"\n{'where':<7} {'type':<28} {'count':>6} {'self ms':>9} {'share':>6}  operation")
    for row in rows[:10]:
        time = row["Total self-time (us)"]
        print(
            f"{row['Host/device']:<7} {row['Type'][:28]:<28} {row['#Occurrences']:>6} "
            f"{time / 1000:>9.1f} {time / total:>6.1%}  {row['Operation'][-40:]}"
        )


if __name__ == "__main__":
    main()
