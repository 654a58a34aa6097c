"""Nova's own planner on the cases of tests/bench/examples/nova_cases.rs, against its model in the bench of planners: nodes, cores
and devices, or that there is no place.

    nova_cases.py FILE     a case a line; ends with 1 where one differs
"""

import collections
import json
import sys

import nova_host
from nova_host import CONF, objects

from nova.objects import fields
from nova.pci import stats, whitelist
from nova.virt import hardware

# A difference in which thread of a core an odd vCPU has, which costs nobody anything.
SIBLING = "the other thread of a core"


def cell(told):
    """A node with what guests have of it."""
    pcpus = {pcpu for core in told["cores"] for pcpu in core}
    pages = objects.NUMAPagesTopology(size_kb=4, total=told["mib"] * 256, used=told["used_mib"] * 256, reserved=0)
    return objects.NUMACell(
        id=told["id"], socket=told["package"], cpuset=set(), pcpuset=pcpus, memory=told["mib"], memory_usage=told["used_mib"],
        cpu_usage=len(told["pinned"]), pinned_cpus=set(told["pinned"]), siblings=[set(core) for core in told["cores"]],
        mempages=[pages], network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
    )


def pools(topology, devices):
    """The free functions."""
    ids = sorted({(one["vendor"], one["product"]) for kind in devices.values() for one in kind})
    specs = [json.dumps({"vendor_id": vendor, "product_id": product}) for vendor, product in ids]
    made = stats.PciDeviceStats(topology, dev_filter=whitelist.Whitelist(specs))
    for one in (one for kind in devices.values() for one in kind):
        made.add_device(objects.PciDevice.create(None, {
            "compute_node_id": 1, "address": one["bdf"], "vendor_id": one["vendor"], "product_id": one["product"],
            "status": fields.PciDeviceStatus.AVAILABLE, "numa_node": one["node"], "dev_type": fields.PciDeviceType.STANDARD,
            "parent_addr": None, "dev_id": "", "label": "",
        }))
    return made


def wanted(case):
    """What a flavor asks for: cells, and functions by kind."""
    extra = {"hw:cpu_policy": "dedicated", "hw:numa_nodes": str(len(case["guest"])), "hw:mem_page_size": "small"}
    first = 0
    for number, own in enumerate(case["guest"]):
        if len(case["guest"]) > 1:
            extra[f"hw:numa_cpus.{number}"] = f"{first}-{first + own['vcpus'] - 1}"
            extra[f"hw:numa_mem.{number}"] = str(own["mib"])
        first += own["vcpus"]
    flavor = {
        "name": "a", "vcpus": first, "ram": sum(own["mib"] for own in case["guest"]), "disk": 0, "ephemeral": 0, "swap": 0,
        "extra_specs": extra,
    }
    cells = nova_host.instance(flavor, {})
    requests = []
    for kind, count in case["wanted"].items():
        ids = sorted({(one["vendor"], one["product"]) for one in case["devices"][kind]}) or [("0000", "0000")]
        spec = [{"vendor_id": vendor, "product_id": product} for vendor, product in ids]
        if count:
            requests.append(objects.InstancePCIRequest(
                count=count, spec=spec, alias_name=kind, request_id=kind, numa_policy=case["policy"]))
    return cells, objects.InstancePCIRequests(requests=requests)


def place(case):
    """The place that Nova finds, in the words of the case; None: there is none."""
    CONF.set_override("packing_host_numa_cells_allocation_strategy", case["packing"], "compute")
    topology = objects.NUMATopology(cells=[cell(told) for told in case["cells"]])
    cells, pci = wanted(case)
    free = pools(topology, case["devices"])
    fitted = hardware.numa_fit_instance_to_host(topology, cells, provider_mapping=None, pci_requests=pci.requests, pci_stats=free)
    if fitted is None:
        return None
    got = free.consume_requests(pci.requests, numa_cells=fitted.cells) or []
    return {
        "cells": [{"node": own.id, "pcpus": sorted(own.cpu_pinning.values())} for own in fitted.cells],
        "devices": sorted(device.address for device in got),
    }


def difference(case, real):
    """How two places differ, in a word; empty: they do not."""
    model = case["model"]
    if model is None or real is None:
        return "" if model is real else ("refused by Nova only" if real is None else "refused by the model only")
    nodes = [[own["node"] for own in place["cells"]] for place in (model, real)]
    if nodes[0] != nodes[1]:
        return "nodes in another order" if sorted(nodes[0]) == sorted(nodes[1]) else "other nodes"
    if sorted(model["devices"]) != real["devices"]:
        return "other devices"
    pcpus = [[sorted(own["pcpus"]) for own in place["cells"]] for place in (model, real)]
    if pcpus[0] == pcpus[1]:
        return ""
    core_of = {pcpu: min(core) for told in case["cells"] for core in told["cores"] for pcpu in core}
    cores = [[sorted(core_of[pcpu] for pcpu in own) for own in places] for places in pcpus]
    # Nova takes the threads of a core from a Python set: the order is that of hashes.
    return SIBLING if cores[0] == cores[1] else "other cores"


def main():
    """Prints how often they differ, and the first case of each kind."""
    nova_host.CONF([], project="nova", default_config_files=[])
    counts, firsts, all_of_them = collections.Counter(), {}, collections.Counter()
    with open(sys.argv[1], encoding="utf-8") as file:
        for line in file:
            case = json.loads(line)
            real = place(case)
            kind = difference(case, real)
            counts[kind] += 1
            all_of_them[case["host"]] += 1
            if kind and kind not in firsts:
                firsts[kind] = {"host": case["host"], "guest": case["guest"], "wanted": case["wanted"], "policy": case["policy"],
                                "packing": case["packing"], "model": case["model"], "nova": real}
    total = sum(counts.values())
    equal = counts[""] + counts[SIBLING]
    print(f"export: Nova {nova_host.VERSION} and its model agree in {equal} of {total} cases on {len(all_of_them)} hosts")
    for kind, count in counts.most_common():
        if kind:
            print(f"  {count}: {kind}, first: {json.dumps(firsts[kind])[:600]}")
    return 0 if total and equal == total else 1


sys.exit(main())
