# -*- coding: utf-8 -*-
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""GPU guests of a libvirt host."""

DOCUMENTATION = r'''
module: gpuvm_guest
short_description: Create, change, start, stop and delete GPU guests
version_added: 0.1.0
description:
  - Makes a guest as described, by C(gpuvm apply) on the managed host, which plans where its GPUs, CPUs and memory
    come from, undoes what fails, and does nothing if the guest is as described.
  - Options are those of C(gpuvm create), with underscores; C(gpuvm create --help) says more of each.
  - Of a guest that exists, options that are not given stay as they are. To take something away, say so, as in
    C(gpus=0) or C(nic=[]).
  - What cannot be changed in a guest that exists is an error, and nothing is done.
  - Only guests that gpuvm made are touched. A domain of another origin with this name is an error in each state.
options:
  state:
    description:
      - "C(present): the guest exists as described; whether it runs is not changed."
      - "C(started): it exists as described, and runs."
      - "C(stopped): it exists as described, and is off."
      - "C(restarted): it exists as described, and is shut down and started, each time."
      - "C(absent): it does not exist, nor do the disks that were made for it."
    type: str
    choices: [present, started, stopped, restarted, absent]
    default: present
  wait:
    description:
      - Seconds that the guest has to shut down, with C(state=stopped) and C(state=restarted).
      - A guest that still runs then is left running, and the task fails, unless C(force) is set.
    type: int
    default: 120
  force:
    description:
      - Cut the power of a running guest in place of shutting it down, with C(state=stopped) and C(state=restarted);
        may lose data.
    type: bool
    default: false
  keep_data:
    description:
      - Keep the data disk, with C(state=absent).
    type: bool
    default: false
  accept_data_loss:
    description:
      - Allow overwriting drives that contain data.
    type: bool
    default: false
  address_wait:
    description:
      - Seconds to wait for the address of a running guest, which the task returns; it fails if there is none then.
      - 0 does not wait.
    type: int
    default: 0
  lock_wait:
    description:
      - Seconds to wait for another change of the host to finish; 0 does not wait.
    type: int
    default: 60
  accept_backing:
    description:
      - Accept this backing file of an image.
      - Absolute paths of the managed host, or QEMU's own words for what is no file.
    type: list
    elements: str
  accept_shared_fabric:
    description:
      - Accept an NVLink fabric shared with other guests.
      - C(gpuvm host trust one-tenant) says it once for a host.
    type: bool
  add_disk:
    description:
      - Attach this image file or device beside the boot disk.
      - Absolute paths of the managed host.
    type: list
    elements: path
  allow:
    description:
      - Rules to relax.
    type: list
    elements: str
    choices: [remote, split, mig]
  autostart:
    description:
      - "Start the guest when the host boots; not given: as it is."
    type: bool
  cells:
    description:
      - Number of guest NUMA cells.
    type: str
  data_dir:
    description:
      - Directory for the data disk.
      - An absolute path of the managed host.
    type: path
  data_size:
    description:
      - "Data disk size; none: no data disk."
      - "Default: the share of the GPUs; none if no data file system is mounted."
    type: str
  disk:
    description:
      - Boot from this image file or device.
      - Absolute paths of the managed host.
    type: list
    elements: path
  disk_dir:
    description:
      - Directory for a blank boot disk.
      - An absolute path of the managed host.
    type: path
  drive:
    description:
      - Attach a whole drive by ID.
    type: list
    elements: str
  gpu:
    description:
      - This GPU, by index or PCI address.
      - Write PCI addresses in quotes, since YAML reads C(0000:34:00.0) as a number.
    type: list
    elements: str
  gpu_index:
    description:
      - Index of the first of C(gpus) consecutive GPUs.
    type: int
  gpu_model:
    description:
      - GPU model, such as H100 or 10de:2330.
    type: str
  gpus:
    description:
      - Number of GPUs.
      - C(gpuvm) chooses which, by the criteria of gpuvm-placement(7).
    type: int
  huge_pages:
    description:
      - Use huge pages.
      - "Default: auto."
    type: str
    choices: [auto, "off", 2M, 1G]
  image:
    description:
      - "Image for the boot disk; none: a blank disk."
      - "Default: the newest image on the host."
    type: str
  image_pool:
    description:
      - libvirt storage pool of the images.
    type: str
  imex_node:
    description:
      - Addresses of all guests of the IMEX domain.
    type: list
    elements: str
  iommufd:
    description:
      - Pass functions through by iommufd.
    type: str
    choices: [auto, "on", "off"]
  l3:
    description:
      - L3 caches that vCPUs are below.
    type: str
    choices: [any, large]
  machine:
    description:
      - Machine type, such as pc-q35-9.2.
    type: str
  max_vcpus:
    description:
      - Most vCPUs that it can have while it runs.
    type: int
  memory:
    description:
      - Memory size, such as 180G.
      - "Default: the share of the GPUs; without GPUs 2G."
    type: str
  meta_data:
    description:
      - cloud-init meta-data to use instead of gpuvm's.
      - An absolute path of the managed host.
    type: path
  movable:
    description:
      - Allow gpuvm make-room to move the guest.
    type: bool
  name:
    description:
      - Domain name.
      - Letters, digits, C(-), C(_) and C(.).
    type: str
    required: true
  nccl:
    description:
      - How the guest finds its NCCL topology file.
    type: str
    choices: [link, conf]
  network:
    description:
      - NIC on this libvirt network.
      - Such as C(lab,mac=52:54:00:00:00:01); one text is one NIC, also with commas.
      - "Default: the NIC of the template."
    type: list
    elements: str
  network_config:
    description:
      - cloud-init network configuration.
      - An absolute path of the managed host.
    type: path
  nic:
    description:
      - Pass through N NICs or the NIC at address BDF.
      - A number takes the free NICs nearest to the GPUs; addresses take exactly those.
    type: list
    elements: str
  nic_near:
    description:
      - Maximum distance of each GPU's nearest NIC.
    type: str
    choices: [switch, node, any]
  no_agent:
    description:
      - Do not install the QEMU guest agent.
    type: bool
  no_nccl:
    description:
      - Write no NCCL topology file into the guest.
    type: bool
  no_login:
    description:
      - Create a guest without any login.
    type: bool
  no_seed:
    description:
      - Create no cloud-init seed.
    type: bool
  nvme:
    description:
      - Pass through N NVMe drives or the one at BDF.
      - Drives that the host uses are never taken.
    type: list
    elements: str
  nvme_near:
    description:
      - Maximum distance of each GPU's nearest NVMe drive.
    type: str
    choices: [switch, node, any]
  os_disk:
    description:
      - How to make the boot disk from the image.
    type: str
    choices: [clone, qcow2, overlay]
  os_size:
    description:
      - Boot disk size.
    type: str
  p2p:
    description:
      - Keep transfers between its GPUs and NICs below their PCIe switch.
    type: str
    choices: [auto, "off"]
  p2p_clique:
    description:
      - Enable GPUDirect peer-to-peer below a PCIe switch.
    type: bool
  partition:
    description:
      - Attach a partition by PARTUUID.
    type: list
    elements: str
  password_hash:
    description:
      - File with the user's password hash.
      - As C(openssl passwd -6) prints it.
      - An absolute path of the managed host.
    type: path
  pins:
    description:
      - vCPU pinning.
      - "Default: auto."
    type: str
    choices: [auto, core, thread, none]
  policy:
    description:
      - Choice between equally good places.
    type: str
    choices: [pack, spread]
  pool:
    description:
      - libvirt storage pool for the boot disk and the seed.
    type: str
  preallocate:
    description:
      - Preallocation of the data disk.
    type: str
    choices: [none, reserve, full]
  prefer:
    description:
      - Preference where near NICs and one package exclude each other.
    type: str
    choices: [auto, nic, package]
  profile:
    description:
      - Sizing and pinning profile.
    type: str
    choices: [share, near, nvidia-vm]
  reserve_cores:
    description:
      - Reserve N cores of each node for the host.
    type: int
  reserve_memory:
    description:
      - Reserve this much memory of each node for the host.
    type: str
  reserve_pages:
    description:
      - Reserve missing huge pages.
    type: bool
  restart:
    description:
      - Whether the guest may be restarted for a change.
      - "C(allowed): a running guest is restarted for a change that needs it."
      - "C(never), the default: it is not changed, and the task returns C(restart_required)."
      - With C(state=stopped) and C(state=restarted) changes are made while the guest is off.
    type: str
    choices: [allowed, never]
  spare_ports:
    description:
      - Free root ports for devices added while it runs.
    type: int
  ssh_key:
    description:
      - File of SSH public keys that may log in.
      - "Default: those of the user who runs the module on the host (C(~/.ssh/id_*.pub))."
      - Absolute paths of the managed host.
    type: list
    elements: path
  start:
    description:
      - "Whether a new guest is started; default: true."
      - With C(state=present) only.
    type: bool
  template:
    description:
      - Domain XML to start from.
      - An absolute path of the managed host.
    type: path
  threads:
    description:
      - Threads per core in the guest.
    type: int
  user:
    description:
      - User to create, with sudo rights.
    type: str
  user_data:
    description:
      - cloud-init user-data to include.
      - An absolute path of the managed host.
    type: path
  vcpus:
    description:
      - Number of vCPUs.
      - "Default: the share of the GPUs; without GPUs 2, rounded up to whole cores."
    type: int
  vf:
    description:
      - Pass through N virtual functions or that at BDF.
      - A number or addresses, each with keys, such as C(2,vlan=5) or C(0000:86:00.2,trust=on).
    type: list
    elements: str
  vgpu:
    description:
      - "Give it vGPUs of this type: shares of a GPU."
      - Such as C(H200X-18C) or C(H200X-18C,count=2,gpu=0).
    type: str
  virt_type:
    description:
      - Domain type.
    type: str
    choices: [kvm, qemu]
attributes:
  check_mode:
    support: full
    description: The guest is compared and placed, as by C(gpuvm apply --dry-run); nothing changes.
  diff_mode:
    support: full
    description: Shows what differs, by option, and the state.
extends_documentation_fragment:
  - gpuvm.gpuvm.gpuvm
seealso:
  - module: gpuvm.gpuvm.gpuvm_network
  - module: gpuvm.gpuvm.gpuvm_host_info
'''

EXAMPLES = r'''
- name: A guest with two GPUs
  gpuvm.gpuvm.gpuvm_guest:
    name: train-a
    gpus: 2
    image: debian-12
    user: lab
    ssh_key: /root/lab.pub
    state: started
    address_wait: 300
  register: train

- name: More memory, at the price of a restart
  gpuvm.gpuvm.gpuvm_guest:
    name: train-a
    memory: 256G
    restart: allowed

- name: Two virtual functions on VLAN 5, and a GPU by address
  gpuvm.gpuvm.gpuvm_guest:
    name: train-b
    gpu: "0000:34:00.0"
    vf: 2,vlan=5

- name: Off, as it is
  gpuvm.gpuvm.gpuvm_guest:
    name: train-a
    state: stopped

- name: Gone, with the disks that were made for it
  gpuvm.gpuvm.gpuvm_guest:
    name: train-a
    state: absent
'''

RETURN = r'''
name:
  description: Name of the guest.
  returned: always
  type: str
action:
  description:
    - "What was done, or would be in check mode, with the definition: C(keep), C(create), C(change), C(pending) or
      C(delete)."
    - "C(pending): it differs, runs, and may not be restarted."
  returned: success
  type: str
differences:
  description: What differed from the description.
  returned: success
  type: list
  elements: dict
  contains:
    option:
      description: The option.
      type: str
    is:
      description: What the guest had.
      type: str
    wanted:
      description: What was requested.
      type: str
    changeable:
      description: Whether it can be changed without making the guest anew.
      type: bool
restart_required:
  description: Whether differences are left that need a restart.
  returned: success
  type: bool
gpus:
  description: Indexes of the GPUs that a new guest gets, or one that gets others.
  returned: success
  type: list
  elements: int
state:
  description: State of the guest in libvirt's words, such as C(running) or C(shut-off), or C(absent).
  returned: success
  type: str
guest:
  description: The guest as C(gpuvm show --json) prints it; in check mode as it is now.
  returned: if the guest exists
  type: dict
address:
  description: Address of the guest, as C(gpuvm ip --json) prints it.
  returned: if C(address_wait) is not 0 and the guest runs
  type: dict
code:
  description: Stable name of the error.
  returned: failure
  type: str
hint:
  description: What would help.
  returned: failure
  type: str
commands:
  description: Commands of the hint that can be run as they are.
  returned: failure
  type: list
  elements: str
'''

import json
import re
import shlex

from ansible_collections.gpuvm.gpuvm.plugins.module_utils.gpuvm import (
    NO_DOMAIN, GpuvmError, choice, main, path, paths, switch, text, texts)

# Options of the guest: those of `gpuvm create`, and what `gpuvm apply` takes besides.
FIELDS = dict(
    accept_backing=dict(type=texts),
    accept_shared_fabric=dict(type='bool'),
    add_disk=dict(type=paths),
    allow=dict(type='list', elements='str', choices=['remote', 'split', 'mig']),
    autostart=dict(type='bool'),
    cells=dict(type=text),
    data_dir=dict(type=path),
    data_size=dict(type=text),
    disk=dict(type=paths),
    disk_dir=dict(type=path),
    drive=dict(type=texts),
    gpu=dict(type=texts),
    gpu_index=dict(type='int'),
    gpu_model=dict(type=text),
    gpus=dict(type='int'),
    huge_pages=dict(type=choice, choices=['auto', 'off', '2M', '1G']),
    image=dict(type=text),
    image_pool=dict(type=text),
    imex_node=dict(type=texts),
    iommufd=dict(type=switch, choices=['auto', 'on', 'off']),
    l3=dict(type=choice, choices=['any', 'large']),
    machine=dict(type='str'),
    max_vcpus=dict(type='int'),
    memory=dict(type=text),
    meta_data=dict(type=path),
    movable=dict(type='bool'),
    name=dict(type=text, required=True),
    nccl=dict(type=choice, choices=['link', 'conf']),
    network=dict(type=texts),
    network_config=dict(type=path),
    nic=dict(type=texts),
    nic_near=dict(type=choice, choices=['switch', 'node', 'any']),
    no_agent=dict(type='bool'),
    no_nccl=dict(type='bool'),
    no_login=dict(type='bool'),
    no_seed=dict(type='bool'),
    nvme=dict(type=texts),
    nvme_near=dict(type=choice, choices=['switch', 'node', 'any']),
    os_disk=dict(type=choice, choices=['clone', 'qcow2', 'overlay']),
    os_size=dict(type=text),
    p2p=dict(type=switch, choices=['auto', 'off']),
    p2p_clique=dict(type='bool'),
    partition=dict(type=texts),
    password_hash=dict(type=path, no_log=True),
    pins=dict(type=choice, choices=['auto', 'core', 'thread', 'none']),
    policy=dict(type=choice, choices=['pack', 'spread']),
    pool=dict(type=text),
    preallocate=dict(type=choice, choices=['none', 'reserve', 'full']),
    prefer=dict(type=choice, choices=['auto', 'nic', 'package']),
    profile=dict(type=choice, choices=['share', 'near', 'nvidia-vm']),
    reserve_cores=dict(type='int'),
    reserve_memory=dict(type=text),
    reserve_pages=dict(type='bool'),
    restart=dict(type=choice, choices=['allowed', 'never']),
    spare_ports=dict(type='int'),
    ssh_key=dict(type=paths),
    start=dict(type='bool'),
    template=dict(type=path),
    threads=dict(type='int'),
    user=dict(type=text),
    user_data=dict(type=path),
    vcpus=dict(type='int'),
    vf=dict(type=texts),
    vgpu=dict(type=text),
    virt_type=dict(type=choice, choices=['kvm', 'qemu']),
)
# Options of the task.
TASK = dict(
    state=dict(type='str', default='present', choices=['present', 'started', 'stopped', 'restarted', 'absent']),
    wait=dict(type='int', default=120),
    force=dict(type='bool', default=False),
    keep_data=dict(type='bool', default=False),
    accept_data_loss=dict(type='bool', default=False),
    address_wait=dict(type='int', default=0),
    lock_wait=dict(type='int', default=60),
)
# Fields that describe no guest: with these alone, one that exists is left as it is.
NO_DESCRIPTION = ('name', 'start', 'restart')
# What gpuvm derives again where another option changes, or leaves as it is where nothing is said.
DERIVED = ('vcpus', 'max_vcpus', 'memory', 'huge_pages', 'autostart')
# An option that is given, and those of the guest that it takes the place of.
INSTEAD = dict(
    gpus=('gpu', 'vgpu'),
    gpu=('gpus', 'gpu_index', 'gpu_model', 'vgpu'),
    gpu_index=('gpu', 'vgpu'),
    vgpu=('gpus', 'gpu', 'gpu_index', 'gpu_model'),
    image=('disk', 'disk_dir'),
    disk=('image', 'image_pool', 'os_disk', 'os_size', 'disk_dir', 'pool'),
    disk_dir=('image', 'image_pool', 'os_disk', 'disk', 'pool'),
)
# States of a domain that does not run, in libvirt's words.
OFF = ('shut-off', 'crashed')


class Guest(object):
    """A guest, and the task that is done with it."""

    def __init__(self, gpuvm, answer):
        """Looks at it; refuses one that gpuvm did not make."""
        self.gpuvm, self.answer = gpuvm, answer
        self.options = gpuvm.module.params
        self.check = gpuvm.module.check_mode
        self.name = self.options['name']
        self.wanted = self.options['state']
        self.given = dict((key, self.options[key]) for key in FIELDS if self.options[key] is not None)
        answer.update(name=self.name, action='keep', differences=[], gpus=[], restart_required=False)
        self.row = self.look()
        self.before = dict(state=self.state())
        self.after = dict(self.before)

    def look(self):
        """Returns the guest as it is; none: there is no such domain."""
        try:
            row = self.gpuvm.run(['show'], ['--', self.name], 'gpuvm-domain')
        except GpuvmError as error:
            if error.code == NO_DOMAIN:
                return None
            raise
        if row['remembered'] is None:
            raise GpuvmError('ansible-foreign', 'domain `%s` exists, and gpuvm did not make it' % self.name,
                             '`gpuvm show %s` shows what it is; choose another name' % shlex.quote(self.name))
        return row

    def state(self):
        """Returns its state in libvirt's words."""
        return self.row['state'] if self.row else 'absent'

    def runs(self):
        """Returns whether it runs, or stands still in memory."""
        return self.row is not None and self.row['state'] not in OFF

    def limits(self):
        """Returns the words of all changes."""
        return ['--lock-wait=%d' % self.options['lock_wait']]

    def delete(self):
        """Deletes the guest, if it exists."""
        if self.row is None:
            # As a mistake in a variable gives one.
            if not re.match(r'[A-Za-z0-9_][A-Za-z0-9_.+-]*$', self.name):
                raise GpuvmError('ansible-name', '`%s` is not a name of a guest' % self.name,
                                 'letters, digits, `-`, `_`, `.` and `+`; the first a letter, digit or `_`')
            return
        self.before.update(self.described())
        self.after = dict(state='absent')
        words = self.limits() + (['--keep-data'] if self.options['keep_data'] else [])
        words += ['--dry-run' if self.check else '--yes'] + self.only() + ['--', self.name]
        try:
            self.gpuvm.run(['delete'], words)
        except GpuvmError as error:
            # Another has deleted it meanwhile.
            if error.code != NO_DOMAIN:
                raise
            return
        self.answer.update(changed=True, action='delete')

    def described(self):
        """Returns the guest that exists in the words of a description."""
        guest = self.gpuvm.run(['get'], ['--', self.name], 'gpuvm-guests')['guests'][0]
        return dict((key.replace('-', '_'), value) for key, value in guest.items())

    def description(self):
        """Returns the guest as it is to be; none: what is given describes nothing."""
        if self.row is None:
            # A stopped one is never started, and one that is to run is started apart if that is said.
            start = self.given.get('start', True) if self.wanted == 'present' else self.wanted != 'stopped'
            return dict(self.given, start=start)
        if not set(self.given) - set(NO_DESCRIPTION):
            return None
        has = self.described()
        for option in DERIVED:
            has.pop(option, None)
        for option in self.given:
            for other in INSTEAD.get(option, ()):
                has.pop(other, None)
        if self.given.get('gpus') == 0:
            has.pop('gpu_model', None)
            has.pop('gpu_index', None)
        return dict(has, **self.given)

    def apply(self, description, dry_run, may_restart):
        """Makes or changes the guest as described. Returns what was done, or would be."""
        guest = dict((key.replace('_', '-'), value) for key, value in description.items())
        document = dict(format='gpuvm-guests', version=1, guests=[guest])
        words = self.limits() + ['--file=-']
        words += ['--dry-run'] if dry_run else []
        words += ['--restart'] if may_restart else []
        words += ['--accept-data-loss'] if self.options['accept_data_loss'] else []
        data = json.dumps(document, ensure_ascii=False)
        done = self.gpuvm.run(['apply'], words, 'gpuvm-apply', data, (0, 3))['guests'][0]
        if done['action'] == 'conflict':
            # A preview shows what a change refuses.
            fixed = ['%(option)s %(is)s -> %(wanted)s' % one for one in done['differences'] if not one['changeable']]
            show = 'gpuvm get ' + shlex.quote(self.name)
            raise GpuvmError('apply-conflict', 'domain `%s` differs in what cannot be changed: %s'
                             % (self.name, '; '.join(fixed)),
                             '`%s` prints what it is; once it is deleted, it is made anew as described' % show,
                             commands=[show])
        return done

    def make(self):
        """Makes or changes the guest, and starts or stops it."""
        description = self.description()
        stops = self.runs() and self.wanted in ('stopped', 'restarted')
        done = None
        if description is not None:
            # What is off anyway takes changes; what is refused is refused before it is off.
            done = self.apply(description, self.check or stops, stops)
        if stops and done is not None and done['action'] != 'keep' and not self.check:
            self.power(['stop'], 'shut-off')
            try:
                done = self.apply(description, False, False)
            except GpuvmError:
                # It ran before.
                if self.wanted == 'restarted':
                    self.power(['start'], 'running')
                raise
        if done is not None:
            self.told(done)
        self.settle(stops)

    def told(self, done):
        """Notes what was done with the definition."""
        action, differences = done['action'], done.get('differences', [])
        if self.row is None and action != 'create':
            # Another has made it meanwhile.
            self.row = self.look()
            self.before = dict(state=self.state())
            self.after = dict(self.before)
        differences = [dict(one, option=one['option'].replace('-', '_')) for one in differences]
        # The size of a pending one waits, its start with the host does not.
        waits = action == 'pending'
        made = [one for one in differences if not waits or one['option'] == 'autostart']
        self.before.update((one['option'], one['is']) for one in made)
        self.after.update((one['option'], one['wanted']) for one in made)
        if action == 'create':
            self.after = dict(self.given, state='running' if self.starts() else 'shut-off')
            for option in ('start', 'restart'):
                self.after.pop(option, None)
        left = [one for one in differences if waits and one not in made]
        if left:
            said = ', '.join('%(option)s %(is)s -> %(wanted)s' % one for one in left)
            self.gpuvm.module.warn('domain `%s` runs, and these changes need a restart: %s; '
                                   '`restart: allowed` makes them' % (self.name, said))
        self.answer.update(action=action, differences=differences, gpus=done.get('gpus', []),
                           restart_required=bool(left), changed=bool(made) or action in ('create', 'change'))

    def starts(self):
        """Returns whether a new guest is started."""
        return self.wanted in ('started', 'restarted') or (self.wanted == 'present' and self.given.get('start', True))

    def settle(self, stops):
        """Starts, stops or restarts it; C(stops): whether it is to be off, if only for a while."""
        if self.check:
            if self.wanted == 'started' and self.row is not None and self.state() != 'running':
                self.after['state'] = 'running'
            elif self.wanted == 'restarted' and self.row is not None:
                self.after['state'] = 'running'
                self.answer['changed'] = True
            elif stops:
                self.after['state'] = 'shut-off'
            self.answer['changed'] |= self.after['state'] != self.before['state']
            return
        was, self.row = self.row, self.look()
        if self.row is None:
            raise GpuvmError('ansible-gone', 'domain `%s` was deleted meanwhile' % self.name, 'run the task again')
        if self.wanted == 'started' and self.state() != 'running':
            self.power(['start'], 'running')
        elif self.wanted == 'restarted' and was is not None:
            # One that a change has stopped, or that was off, is only started.
            self.power(['restart'] if self.runs() else ['start'], 'running')
        elif self.wanted == 'stopped' and self.runs():
            self.power(['stop'], 'shut-off')
        self.after['state'] = self.state()

    def only(self):
        """The option that refuses another domain which has got the name since this one was looked at."""
        return [] if self.row is None else ['--uuid=%s' % self.row['uuid']]

    def power(self, verb, state):
        """Starts or stops it."""
        words = self.limits()
        if verb != ['start']:
            words += ['--force'] if self.options['force'] else ['--wait=%d' % self.options['wait']]
        started = self.gpuvm.run(verb, words + self.only() + ['--', self.name],
                                 'gpuvm-started' if verb == ['start'] else None)
        # Another may have started it meanwhile.
        if started is None or not started['already']:
            self.answer['changed'] = True
        self.row = dict(self.row, state=state)

    def address(self):
        """Waits for the address of a running guest."""
        wait = self.options['address_wait']
        if wait > 0 and not self.check and self.runs():
            words = ['--wait=%d' % wait, '--', self.name]
            self.answer['address'] = self.gpuvm.run(['ip'], words, 'gpuvm-address')


def task(gpuvm, answer):
    """Does the task."""
    guest = Guest(gpuvm, answer)
    if guest.wanted == 'absent':
        guest.delete()
    else:
        guest.make()
        if not guest.check:
            guest.row = guest.look()
        if guest.row is not None:
            answer['guest'] = guest.row
        guest.address()
    answer['state'] = guest.after['state']
    answer['diff'] = dict(before=guest.before, after=guest.after)


if __name__ == '__main__':
    main(dict(FIELDS, **TASK), task)
