# -*- coding: utf-8 -*-
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a host has, and what still fits."""

DOCUMENTATION = r'''
module: gpuvm_host_info
short_description: Read GPUs, guests, networks and free capacity of a host
version_added: 0.1.0
description:
  - Returns what commands of C(gpuvm) print with C(--json) on the managed host. Changes nothing.
options:
  gather_subset:
    description:
      - What to read.
      - "C(host): CPUs, memory, PCIe tree, GPUs, NICs and drives, by C(gpuvm host show)."
      - "C(capacity): which guests still fit, by C(gpuvm capacity)."
      - "C(doctor): what would stop GPU guests, by C(gpuvm host doctor)."
      - "C(guests): all domains, by C(gpuvm list)."
      - "C(networks): all libvirt networks, by C(gpuvm network list)."
    type: list
    elements: str
    choices: [host, capacity, doctor, guests, networks]
    default: [host, guests]
attributes:
  check_mode:
    support: full
    description: Nothing is changed in any case.
  diff_mode:
    support: none
    description: Nothing is changed.
extends_documentation_fragment:
  - gpuvm.gpuvm.gpuvm
seealso:
  - module: gpuvm.gpuvm.gpuvm_guest
'''

EXAMPLES = r'''
- name: What still fits
  gpuvm.gpuvm.gpuvm_host_info:
    gather_subset: [capacity, doctor]
  register: found

- name: Only hosts without errors go on
  ansible.builtin.assert:
    that: found.doctor.findings | selectattr('severity', 'equalto', 'error') | length == 0
'''

RETURN = r'''
host:
  description: The document C(gpuvm-host-show).
  returned: if requested
  type: dict
capacity:
  description: The document C(gpuvm-capacity).
  returned: if requested
  type: dict
doctor:
  description: The document C(gpuvm-host-doctor).
  returned: if requested
  type: dict
guests:
  description: The list C(gpuvm-list).
  returned: if requested
  type: list
  elements: dict
networks:
  description: The list C(gpuvm-network-list).
  returned: if requested
  type: list
  elements: dict
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

from ansible_collections.gpuvm.gpuvm.plugins.module_utils.gpuvm import main

# A part, the verb that prints it, the format of its document, and exit statuses that are answers.
PARTS = dict(
    host=(['host', 'show'], 'gpuvm-host-show', (0,)),
    capacity=(['capacity'], 'gpuvm-capacity', (0,)),
    # 3: it has found an error.
    doctor=(['host', 'doctor'], 'gpuvm-host-doctor', (0, 3)),
    guests=(['list'], None, (0,)),
    networks=(['network', 'list'], None, (0,)),
)


def task(gpuvm, answer):
    """Does the task."""
    for part in gpuvm.module.params['gather_subset']:
        verb, form, statuses = PARTS[part]
        answer[part] = gpuvm.run(verb, form=form, statuses=statuses)


if __name__ == '__main__':
    main(dict(gather_subset=dict(type='list', elements='str', choices=list(PARTS), default=['host', 'guests'])), task)
