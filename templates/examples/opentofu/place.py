"""The program of main.tf's data source: `gpuvm plan` for a provider that knows only text.

Reads a JSON object of texts, the options of `gpuvm plan` by name, and prints one. What is refused goes to standard error,
as the provider wants it, and ends with 1.
"""

import json
import os
import subprocess
import sys

# An empty text leaves the option out.
OPTIONS = ("host", "connect", "name", "profile", "gpus", "gpu-model", "vcpus", "memory", "nic", "nvme")


def place(query):
    """The plan as an object of texts."""
    unknown = sorted(set(query) - set(OPTIONS))
    if unknown:
        sys.exit(f"place.py: `{unknown[0]}` is not known; known: {', '.join(OPTIONS)}")
    command = [os.environ.get("GPUVM", "gpuvm"), "plan", "--json"]
    for option, value in sorted(query.items()):
        command += [f"--{option}={value}"] if value else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"place.py: cannot run `{command[0]}`: {error.strerror}; GPUVM names another program")
    answer = json.loads(done.stdout or "{}")
    if done.returncode != 0:
        sys.exit("\n".join(filter(None, [answer.get("message", done.stderr), *answer.get("causes", []), answer.get("hint")])))
    found = answer["placement"]
    partition = found["partition"]
    return {
        "name": answer["name"],
        "devices": ",".join(found["devices"]),
        "partition": "" if partition is None else str(partition),
        "vcpus": str(len(found["vcpu_pins"])),
        "pins": ";".join(found["vcpu_pins"]),
        "memory_kib": str(sum(cell["memory_kib"] for cell in found["cells"])),
        "nodes": ",".join(cell["host_nodes"] for cell in found["cells"]),
        "plan": json.dumps(answer),
    }


json.dump(place(json.load(sys.stdin)), sys.stdout)
