# -*- coding: utf-8 -*-
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""libvirt networks of a host."""

DOCUMENTATION = r'''
module: gpuvm_network
short_description: Create, replace and delete libvirt networks
version_added: 0.1.0
description:
  - Makes a network as described, by C(gpuvm network create) on the managed host, which checks it against the host's
    addresses, routes and NICs and against other networks, and does nothing if the network is as described.
  - Options are those of C(gpuvm network create), with underscores; C(gpuvm network create --help) says more of each.
  - Of a network that exists, its range and the name of its bridge stay as they are unless they are given; other
    options that are not given have their defaults.
options:
  name:
    description:
      - Network name.
      - The names of nvidia-vm need no C(kind), that is C(default), C(private-net), C(macvtap-net) and C(iovnet0).
    type: str
    required: true
  state:
    description:
      - "C(present): the network exists as described."
      - "C(absent): it does not exist, whoever made it. Virtual functions stay."
    type: str
    choices: [present, absent]
    default: present
  kind:
    description:
      - Kind of network.
      - "C(nat): behind the host's address, with DHCP. C(private): host and guests only, with DHCP. C(macvtap): on a host
        NIC, with addresses of its network. C(bridge): on a bridge of the host. C(sriov): virtual functions of a NIC."
    type: str
    choices: [nat, private, macvtap, bridge, sriov]
  nic:
    description:
      - Host NIC, by name or PCI address.
      - Write a PCI address in quotes, since YAML reads C(0000:34:00.0) as a number.
    type: str
  mode:
    description:
      - Mode of macvtap.
      - "Default: bridge."
    type: str
    choices: [bridge, private, vepa, passthrough]
  bridge:
    description:
      - Bridge name.
      - An existing host bridge for C(kind=bridge), a new one for C(nat) and C(private).
    type: str
  range:
    description:
      - IPv4 range, such as 192.168.123.0/24.
      - "Default: a free one; that of the network, if it exists."
    type: str
  dhcp:
    description:
      - DHCP address range, such as 192.168.123.10-192.168.123.99, or C(off).
      - "Default: the longest range without static addresses."
    type: str
  static:
    description:
      - Fixed addresses of guests, each as C(WHO=IP[,name=HOST]) with a MAC address or the name of a guest.
    type: list
    elements: str
  mtu:
    description:
      - MTU of the network.
    type: int
  vfs:
    description:
      - Virtual functions, now and at every boot, of C(kind=sriov).
    type: int
  replace:
    description:
      - Replace an existing network that differs.
      - Without it such a network is an error. One that is only down, or does not start with libvirt, needs no
        replacement.
    type: bool
    default: false
  accept_loss:
    description:
      - Allow what C(gpuvm) asks about before it does it, that is guests that lose their links and virtual functions
        that are removed.
      - C(state=absent) needs it only if a running guest is on the network.
    type: bool
    default: false
  autostart:
    description:
      - Start the network with libvirt.
    type: bool
    default: true
  start:
    description:
      - Start the network now. A network that runs is not stopped by C(start=false).
    type: bool
    default: true
  lock_wait:
    description:
      - Seconds to wait for another change of the host to finish; 0 does not wait.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
    description: The network is planned, as by C(gpuvm network create --dry-run); nothing changes.
  diff_mode:
    support: full
    description: Shows the network before and after, as C(gpuvm network show --json) does.
extends_documentation_fragment:
  - gpuvm.gpuvm.gpuvm
seealso:
  - module: gpuvm.gpuvm.gpuvm_guest
'''

EXAMPLES = r'''
- name: A network behind the host's address, with a fixed address
  gpuvm.gpuvm.gpuvm_network:
    name: lab
    kind: nat
    range: 192.168.123.0/24
    static:
      - 52:54:00:00:00:01=192.168.123.45,name=train-a

- name: The network on virtual functions of a NIC
  gpuvm.gpuvm.gpuvm_network:
    name: iovnet0
    nic: enp134s0f0
    vfs: 16

- name: Gone
  gpuvm.gpuvm.gpuvm_network:
    name: lab
    state: absent
'''

RETURN = r'''
name:
  description: Name of the network.
  returned: always
  type: str
network:
  description: The network as C(gpuvm network show --json) prints it; in check mode as planned.
  returned: success with C(state=present)
  type: dict
lost:
  description: What guests and the host lose by the change.
  returned: success
  type: list
  elements: str
notes:
  description: Notes of the plan.
  returned: success
  type: list
  elements: str
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

from ansible_collections.gpuvm.gpuvm.plugins.module_utils.gpuvm import (
    GpuvmError, choice, main, text, text_or_off, texts)

# Options of `gpuvm network create` that describe the network.
FIELDS = dict(
    kind=dict(type=choice, choices=['nat', 'private', 'macvtap', 'bridge', 'sriov']),
    nic=dict(type=text),
    mode=dict(type=choice, choices=['bridge', 'private', 'vepa', 'passthrough']),
    bridge=dict(type=text),
    range=dict(type=text),
    dhcp=dict(type=text_or_off),
    static=dict(type=texts),
    mtu=dict(type='int'),
    vfs=dict(type='int'),
)
# Options of the task.
TASK = dict(
    name=dict(type=text, required=True),
    state=dict(type='str', default='present', choices=['present', 'absent']),
    replace=dict(type='bool', default=False),
    accept_loss=dict(type='bool', default=False),
    autostart=dict(type='bool', default=True),
    start=dict(type='bool', default=True),
    lock_wait=dict(type='int', default=60),
)
# What the plan of a network has of it.
PLANNED = ('kind', 'mode', 'nics', 'bridge', 'mtu', 'range', 'own', 'dhcp', 'statics')
# The code of the error that there is no network of a name.
NO_NETWORK = 'not-found'


class Network(object):
    """A network, and the task that is done with it."""

    def __init__(self, gpuvm, answer):
        """Looks at it."""
        self.gpuvm, self.answer = gpuvm, answer
        self.options = gpuvm.module.params
        self.check = gpuvm.module.check_mode
        self.name = self.options['name']
        self.limits = ['--lock-wait=%d' % self.options['lock_wait']]
        answer.update(name=self.name, lost=[], notes=[])
        self.now = self.look()

    def look(self):
        """Returns the network as it is; none: there is no such network."""
        try:
            return self.gpuvm.run(['network', 'show'], ['--', self.name], 'gpuvm-network')
        except GpuvmError as error:
            if error.code == NO_NETWORK:
                return None
            raise

    def words(self):
        """Returns the words that describe it, as `gpuvm network create` takes them."""
        words = list(self.limits)
        for option in FIELDS:
            value = self.options[option]
            for one in value if isinstance(value, list) else [value]:
                if one is not None:
                    words.append('--%s=%s' % (option, one))
        for option in ('autostart', 'start'):
            if not self.options[option]:
                words.append('--no-' + option)
        return words

    def make(self):
        """Makes it, or replaces one that differs."""
        words, last = self.words(), ['--', self.name]
        plan = self.gpuvm.run(['network', 'create'], words + ['--replace', '--dry-run'] + last, 'gpuvm-network-preview')
        self.answer.update(lost=plan['lost'], notes=plan['notes'], network=self.now or plan['network'])
        done = [step.get('do') for step in plan['steps']]
        before = self.shown(self.now) if self.now else {}
        after = dict((key, plan['network'][key]) for key in PLANNED if key in plan['network'])
        after.update(active=self.options['start'] or bool(self.now and self.now['active']),
                     autostart=self.options['autostart'])
        self.answer['diff'] = dict(before=before, after=after)
        if not plan['steps']:
            return
        # Where the definition stays, nothing is replaced.
        replaces = 'redefine' in done and self.now is not None
        if self.now is not None and (self.options['replace'] or not replaces):
            words = words + ['--replace']
        if plan['lost'] and not self.options['accept_loss']:
            raise GpuvmError('ansible-loss', 'network `%s` is not changed: this would %s'
                             % (self.name, '; '.join(plan['lost'])), '`accept_loss: true` allows that', lost=plan['lost'])
        if self.check:
            words = words + ['--dry-run']
            self.gpuvm.run(['network', 'create'], words + last, 'gpuvm-network-preview')
            self.answer.update(changed=True, network=plan['network'])
            return
        words = words + (['--yes'] if self.options['accept_loss'] else [])
        made = self.gpuvm.run(['network', 'create'], words + last, 'gpuvm-network-created')
        self.answer.update(changed=made['changed'], network=self.look())

    def shown(self, network):
        """Returns what a difference shows of a network."""
        return dict((key, network[key]) for key in PLANNED + ('active', 'autostart') if key in network)

    def delete(self):
        """Deletes it, if it exists."""
        self.answer['diff'] = dict(before=self.shown(self.now) if self.now else {}, after={})
        if self.now is None:
            return
        running = sorted(set(nic['domain'] for nic in self.now['guests'] if nic['running']))
        lost = ['cut %s off network `%s`' % (name, self.name) for name in running]
        if lost and not self.options['accept_loss']:
            raise GpuvmError('ansible-loss', 'network `%s` is not deleted: running guests are on it: %s'
                             % (self.name, ', '.join(running)), '`accept_loss: true` deletes it', lost=lost)
        words = self.limits + ['--dry-run' if self.check else '--yes', '--', self.name]
        try:
            self.gpuvm.run(['network', 'delete'], words)
        except GpuvmError as error:
            # Another has deleted it meanwhile.
            if error.code != NO_NETWORK:
                raise
            return
        self.answer.update(changed=True, lost=lost)


def task(gpuvm, answer):
    """Does the task."""
    network = Network(gpuvm, answer)
    if network.options['state'] == 'absent':
        network.delete()
    else:
        network.make()


if __name__ == '__main__':
    main(dict(FIELDS, **TASK), task)
