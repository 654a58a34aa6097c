"""A recorded host for OpenStack Nova's own code: its cells, its PCI pools, and its planner."""

import contextlib
import importlib.metadata
import io
import logging
import warnings

warnings.simplefilter("ignore")
# Importing says that Eventlet is old.
with contextlib.redirect_stderr(io.StringIO()):
    from nova import conf, objects
    from nova.api.validation.extra_specs import validators
    from nova.objects import fields
    from nova.pci import request as pci_request
    from nova.pci import stats, whitelist
    from nova.virt import hardware

logging.disable(logging.CRITICAL)
CONF = conf.CONF
VERSION = importlib.metadata.version("nova")
PAGES = {"2M": 2048, "1G": 1 << 20}
MIB = 1 << 10
objects.register_all()
validators.load_validators()


def configure(path):
    """Reads a nova.conf as the services do."""
    CONF.reset()
    CONF([], project="nova", default_config_files=[path])
    pci_request.get_alias_from_config.cache_clear()


def members(text):
    """Numbers of a set as the kernel writes it."""
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def flavor_object(flavor):
    """A flavor as Nova keeps it."""
    return objects.Flavor(
        id=1, flavorid="1", name=flavor["name"], vcpus=flavor["vcpus"], memory_mb=flavor["ram"], root_gb=flavor["disk"],
        ephemeral_gb=flavor["ephemeral"], swap=0, rxtx_factor=1.0, vcpu_weight=0, disabled=False, is_public=True,
        extra_specs=dict(flavor["extra_specs"]), projects=[], description=None,
    )


def instance(flavor, image):
    """What Nova wants of a host for a flavor: cells; None: the guest floats."""
    meta = objects.ImageMeta.from_dict({"properties": dict(image)})
    return hardware.numa_get_constraints(flavor_object(flavor), meta)


def requests(flavor):
    """The devices that Nova wants for a flavor."""
    return pci_request.get_pci_requests_from_flavor(
        flavor_object(flavor), affinity_policy=flavor["extra_specs"].get("hw:pci_numa_affinity_policy"))


def device_type(device):
    """The part of a function in SR-IOV, as Nova's libvirt driver finds it."""
    role = (device.get("sriov") or {}).get("role")
    return {"pf": fields.PciDeviceType.SRIOV_PF, "vf": fields.PciDeviceType.SRIOV_VF, None: fields.PciDeviceType.STANDARD}[role]


class Host:
    """A recorded host with the settings of a nova.conf, and with all memory in pages of a size.

    Of nodes that are equal otherwise Nova takes the one with most free memory, and firmware takes some of one node. `level`
    gives all nodes the memory of the smallest, so that the order of nodes decides; `nodes` leaves only these.
    """

    def __init__(self, record, conf_path, page, level=False, nodes=None):
        configure(conf_path)
        self.record = record["host"]
        self.page = PAGES.get(page, 4)
        self.cores = [set(members(core["pcpus"])) for core in self.record["cores"]]
        self.dedicated = hardware.get_cpu_dedicated_set() or set()
        self.shared = hardware.get_cpu_shared_set() or set()
        self.filter = whitelist.Whitelist(CONF.pci.device_spec)
        used = [node for node in self.record["nodes"] if node.get("pcpus") and (nodes is None or node["os_index"] in nodes)]
        least = min(node["memory_kib"] for node in used)
        self.topology = objects.NUMATopology(
            cells=[self.cell(node, least if level else node["memory_kib"]) for node in used])

    def cell(self, node, kib):
        """A node with this much memory."""
        pcpus = set(members(node["pcpus"]))
        pages = kib // self.page
        cores = [core for core in self.cores if core <= pcpus]
        # Without a set Nova shares all pcpus that are not dedicated.
        shared = pcpus & self.shared if self.shared else pcpus - self.dedicated
        socket = next((core["package"] for core in self.record["cores"] if set(members(core["pcpus"])) <= pcpus), 0)
        made = [objects.NUMAPagesTopology(size_kb=self.page, total=pages, used=0, reserved=0)]
        if self.page != 4:
            made.insert(0, objects.NUMAPagesTopology(size_kb=4, total=0, used=0, reserved=0))
        return objects.NUMACell(
            id=node["os_index"], socket=socket, cpuset=shared, pcpuset=pcpus & self.dedicated,
            memory=kib // MIB, cpu_usage=0, memory_usage=0, pinned_cpus=set(), siblings=cores, mempages=made,
            network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
        )

    def pools(self):
        """The functions that nova.conf gives to guests."""
        pools = stats.PciDeviceStats(self.topology, dev_filter=self.filter)
        for device in self.record["devices"]:
            made = objects.PciDevice.create(None, {
                "compute_node_id": 1, "address": device["bdf"], "vendor_id": device["vendor"][2:],
                "product_id": device["device"][2:], "status": fields.PciDeviceStatus.AVAILABLE, "numa_node": device.get("node"),
                "dev_type": device_type(device), "parent_addr": (device.get("sriov") or {}).get("pf"), "dev_id": "", "label": "",
            })
            if self.filter.get_devspec(made):
                pools.add_device(made)
        return pools

    def fit(self, wanted, pci):
        """The place that Nova's planner finds, and its devices; None: there is none."""
        pools = self.pools()
        if wanted is None:
            return None if not pools.support_requests(pci.requests, provider_mapping=None) else objects.InstanceNUMATopology(cells=[]), []
        fitted = hardware.numa_fit_instance_to_host(
            self.topology, wanted, provider_mapping=None, pci_requests=pci.requests, pci_stats=pools)
        if fitted is None:
            return None, []
        return fitted, pools.consume_requests(pci.requests, numa_cells=fitted.cells) or []
