"""Judges exports by the code of OpenStack Nova: its validators, its parsers of nova.conf, and its planner; and by PyYAML.

judge.py OUT    reads what `run` has written to OUT
"""

import copy
import json
import pathlib
import shlex
import sys

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from nova_host import VERSION, Host, hardware, instance, members, objects, requests, validators  # noqa: E402

UNITS = {"Ki": 1, "Mi": 1 << 10, "Gi": 1 << 20}


def fail(text):
    """Ends with an error."""
    sys.exit(f"export: {text}")


def kib(quantity):
    """A quantity of Kubernetes in KiB."""
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def rules(machine):
    """The rules of KubeVirt between fields, which no type has: those that are broken."""
    domain = machine["spec"]["template"]["spec"]["domain"]
    memory, cpu, resources = domain["memory"], domain["cpu"], domain["resources"]
    broken = []
    page = memory.get("hugepages")
    if "numa" in cpu and not (page and cpu.get("dedicatedCpuPlacement")):
        broken.append("cells without huge pages and dedicated pcpus")
    if cpu.get("isolateEmulatorThread") and not cpu.get("dedicatedCpuPlacement"):
        broken.append("an isolated emulator without dedicated pcpus")
    if resources["requests"] != resources["limits"]:
        broken.append("requests are not limits")
    if kib(resources["requests"]["memory"]) < kib(memory["guest"]):
        broken.append("the pod requests less than the guest has")
    if page and kib(memory["guest"]) % kib(page["pageSize"]):
        broken.append("memory is not a multiple of the page")
    if cpu["maxSockets"] < cpu["sockets"]:
        broken.append("more sockets than at most")
    if ("ioThreads" in domain) != (domain["ioThreadsPolicy"] == "supplementalPool"):
        broken.append("a pool of threads without its number")
    volumes = {volume["name"] for volume in machine["spec"]["template"]["spec"]["volumes"]}
    if {disk["name"] for disk in domain["devices"]["disks"]} != volumes:
        broken.append("disks are not volumes")
    return broken


def check_kubevirt(out, name):
    """Text and JSON of an export are one thing, and the rules hold."""
    document = json.loads((out / f"{name}.kubevirt.json").read_text())
    for text, field in [("yaml", "virtual_machine"), ("cluster.yaml", "cluster")]:
        read = yaml.safe_load((out / f"{name}.kubevirt.{text}").read_text())
        if read != document[field]:
            fail(f"{name}: PyYAML reads {text} as {read}, and JSON has {document[field]}")
    broken = rules(document["virtual_machine"])
    if broken:
        fail(f"{name}: {broken}")
    return document["virtual_machine"]


def properties(text):
    """Properties of the command lines."""
    commands = [line for line in text.replace("\\\n", " ").splitlines() if line.startswith("openstack ")]
    if len(commands) != 2:
        fail(f"two commands, and not {commands}")
    found = []
    for command in commands:
        words = shlex.split(command)
        given = [words[at + 1] for at, word in enumerate(words) if word == "--property"]
        found.append((words, dict(one.split("=", 1) for one in given)))
    return found


def check_flavor(name, export, text):
    """Nova's API takes flavor and image; the command lines say the same as JSON."""
    flavor = export["flavor"]
    (words, specs), (_, image) = properties(text)
    sizes = {word[2:]: int(words[at + 1]) for at, word in enumerate(words) if word in ("--vcpus", "--ram", "--disk")}
    if specs != flavor["extra_specs"] or image != export["image"] or words[3] != flavor["name"]:
        fail(f"{name}: the command lines differ from JSON")
    if sizes != {key: flavor[key] for key in sizes} or len(sizes) != 3:
        fail(f"{name}: the command line has {sizes}")
    for key, value in specs.items():
        validators.validate(key, value)
    objects.ImageMeta.from_dict({"properties": image})


def check_constraints(name, plan, got):
    """Nova's constraints of the flavor are the plan: cells, memory, pages, pins, emulator."""
    placement = plan["placement"]
    pinned = any(placement["vcpu_pins"])
    if got is None:
        if pinned or placement["huge_pages"] or len(placement["cells"]) > 1:
            fail(f"{name}: Nova sees no cells")
        return
    if len(got.cells) != len(placement["cells"]):
        fail(f"{name}: Nova sees {len(got.cells)} cells, and the plan has {len(placement['cells'])}")
    page = {"2M": 2048, "1G": 1 << 20, None: hardware.MEMPAGES_SMALL}[placement["huge_pages"]]
    vcpus = {vcpu for pin in placement["vcpu_pins"] for vcpu in members(pin)}
    helpers = set(members(placement["emulator_pin"]))
    helpers |= {pcpu for pin in placement["iothread_pins"] for pcpu in members(pin)}
    policy = "isolate" if pinned and helpers - vcpus else None
    if got.emulator_threads_policy != policy:
        fail(f"{name}: emulator policy {got.emulator_threads_policy}, and not {policy}")
    for number, (cell, planned) in enumerate(zip(got.cells, placement["cells"], strict=True)):
        cpus = cell.pcpuset if pinned else cell.cpuset
        wanted = set(range(planned["vcpus"]["start"], planned["vcpus"]["end"]))
        facts = (cpus, cell.memory << 10, cell.pagesize, cell.cpu_policy)
        expected = (wanted, planned["memory_kib"], page, "dedicated" if pinned else None)
        if facts != expected:
            fail(f"{name}: cell {number} is {facts}, and the plan has {expected}")


def check_place(name, make, export, placement, wanted):
    """Nova's planner finds a place on the recorded host, and also where it has only the nodes of the plan; it takes these
    where all have equal memory, if that is asked for."""
    flavor, image = export["flavor"], export["image"]
    pci = requests(flavor)
    planned = [list(members(cell["host_nodes"])) for cell in placement["cells"]]
    only = {node for cell in planned for node in cell}
    if only and make(nodes=only).fit(instance(flavor, image), pci)[0] is None:
        fail(f"{name}: Nova finds no place on nodes {only} of the plan")
    host, got = make(level=wanted), instance(flavor, image)
    fitted, devices = host.fit(got, pci)
    if fitted is None:
        fail(f"{name}: Nova finds no place on the host")
    if got is None:
        return "floats"
    nodes = [cell.id for cell in fitted.cells]
    same = all([node] == where for node, where in zip(nodes, planned, strict=True))
    if wanted and not same:
        fail(f"{name}: Nova takes nodes {nodes}, and the plan {planned}")
    threads = max(len(core) for core in host.cores)
    for cell in fitted.cells:
        for core in host.cores if cell.cpu_pinning and threads > 1 else []:
            used = core & set(cell.cpu_pinning.values())
            if used and used != core:
                fail(f"{name}: Nova shares core {core}")
    count = sum(request.count for request in pci.requests)
    if len(devices) != count:
        fail(f"{name}: {len(devices)} devices of {count}")
    return "same nodes" if same else f"nodes {nodes}, plan {planned}"


def refuses(what, check):
    """A test of the test: a check of wrong input has to fail."""
    try:
        check()
    except (Exception, SystemExit):
        return
    fail(f"{what} is not refused")


def check_refusals(out, name):
    """Wrong input is refused by every judge."""
    export = json.loads((out / f"{name}.nova.json").read_text())
    plan = json.loads((out / f"{name}.plan.json").read_text())
    machine = json.loads((out / f"{name}.kubevirt.json").read_text())["virtual_machine"]
    count = 0

    def specs(**changes):
        flavor = copy.deepcopy(export["flavor"])
        flavor["extra_specs"].update({key.replace("__", ":"): value for key, value in changes.items()})
        return flavor

    def constraints(flavor):
        check_constraints(name, plan, instance(flavor, export["image"]))

    for key, value in [
        ("hw:emulator_threads_policy", "isolated"),
        ("hw:cpu_policies", "dedicated"),
        ("hw:mem_page_size", "huge"),
        ("hw:numa_nodes", "two"),
        ("hw:cpu_thread_policy", "requires"),
        ("pci_passthrough:alias", "a100"),
    ]:
        refuses(f"{key}={value}", lambda key=key, value=value: validators.validate(key, value))
        count += 1
    refuses("an unknown firmware", lambda: objects.ImageMeta.from_dict({"properties": {"hw_firmware_type": "efi"}}))
    for what, flavor in [
        ("another page", specs(hw__mem_page_size="1GB")),
        ("another number of cells", specs(hw__numa_nodes="2")),
        ("vCPUs that float", specs(hw__cpu_policy="shared")),
        ("another emulator policy", specs(hw__emulator_threads_policy="share")),
        ("more memory", {**export["flavor"], "ram": export["flavor"]["ram"] + 2}),
    ]:
        refuses(what, lambda flavor=flavor: constraints(flavor))
        count += 1
    host = json.loads((out / f"{name}.host.json").read_text())
    conf = (out / f"{name}.nova.conf").read_text()
    for what, changed in [
        ("a field that an alias does not have", conf.replace('"numa_policy"', '"numa_policies"')),
        ("another type of device", conf.replace("type-P", "type-V")),
        ("an address that is none", conf.replace('"address":"0000:', '"address":"0000-')),
        ("a wrong type of device", conf.replace("type-PCI", "type-PF") if "type-PCI" in conf else conf.replace("type-PF", "type-PCI")),
        ("a policy that is none", conf.replace('"required"', '"requires"')),
    ]:
        if changed == conf:
            fail(f"{what}: nothing is changed")
        path = out / "wrong.conf"
        path.write_text(changed)

        def place(path=path):
            def make(**how):
                return Host(host, str(path), plan["placement"]["huge_pages"], **how)

            make()
            check_place(name, make, export, plan["placement"], True)

        refuses(what, place)
        count += 1
    for what, path, value in [
        ("normal pages with cells", ("memory", "hugepages"), None),
        ("memory that is no multiple", ("memory", "guest"), "1025Ki"),
        ("another limit", ("resources", "limits", "memory"), "1Gi"),
        ("floating vCPUs with cells", ("cpu", "dedicatedCpuPlacement"), False),
    ]:
        wrong = copy.deepcopy(machine)
        at = wrong["spec"]["template"]["spec"]["domain"]
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        if not rules(wrong):
            fail(f"{what} is not found")
        count += 1
    return count


def main():
    """Judges every export of the folder."""
    out = pathlib.Path(sys.argv[1])
    names = sorted(path.name.removesuffix(".nova.json") for path in out.glob("*.nova.json"))
    machines = sorted(path.name.removesuffix(".kubevirt.json") for path in out.glob("*.kubevirt.json"))
    cases = json.loads((out / "cases.json").read_text())
    if not set(cases) <= set(names) & set(machines):
        fail(f"not exported: {set(cases) - set(names) & set(machines)}")
    for name in machines:
        check_kubevirt(out, name)
    same = others = 0
    for name in names:
        export = json.loads((out / f"{name}.nova.json").read_text())
        plan = json.loads((out / f"{name}.plan.json").read_text())
        check_flavor(name, export, (out / f"{name}.nova.sh").read_text())
        record, conf = json.loads((out / f"{name}.host.json").read_text()), str(out / f"{name}.nova.conf")
        page = plan["placement"]["huge_pages"]

        def make(record=record, conf=conf, page=page, **how):
            return Host(record, conf, page, **how)

        host = make()
        if host.dedicated != set(members(export["host"].get("cpu_dedicated_set"))):
            fail(f"{name}: Nova reads {host.dedicated} as dedicated pcpus")
        check_constraints(name, plan, instance(export["flavor"], export["image"]))
        said = check_place(name, make, export, plan["placement"], cases.get(name) == "same")
        if said == "same nodes":
            same += 1
        else:
            others += 1
            print(f"export: {name}: {said}")
    refused = sum(check_refusals(out, name) for name in ["dgx-2-2"])
    print(f"export: PyYAML reads {len(machines)} exports to KubeVirt as JSON has them, and its rules hold")
    print(f"export: Nova {VERSION} takes {len(names)} exports, with the constraints of each plan; {same} are placed on "
          f"the plan's nodes, {others} elsewhere; {refused} wrong ones are refused")


if __name__ == "__main__":
    main()
