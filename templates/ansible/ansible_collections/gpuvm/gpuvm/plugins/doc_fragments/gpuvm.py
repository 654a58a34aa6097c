# -*- coding: utf-8 -*-
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Options that all modules of the collection have."""


class ModuleDocFragment(object):
    """The fragment C(gpuvm.gpuvm.gpuvm)."""

    DOCUMENTATION = r'''
options:
  program:
    description:
      - The program C(gpuvm) on the managed host, as a name or an absolute path.
      - A name is looked for in C(PATH) and in C(/usr/local/bin).
    type: str
    default: gpuvm
  connect:
    description:
      - libvirt connection URI, as C(gpuvm --connect) takes it.
      - "Default: that of the program, which is C(LIBVIRT_DEFAULT_URI) or C(qemu:///system)."
    type: str
  host:
    description:
      - Absolute path of a recorded host on the managed host, as C(gpuvm --host) takes it.
      - With C(connect) to another machine, the record of that machine.
      - Without, nothing can be changed, and only C(gpuvm_host_info) takes it, for what needs no guests.
    type: path
notes:
  - Changes need root, as the commands of C(gpuvm) do, so playbooks use C(become).
  - Errors have the stable C(code), the C(message), the C(causes), the C(hint) and the C(commands) of
    C(gpuvm --json), which gpuvm-codes(7) lists.
  - Errors of the modules themselves have codes that begin with C(ansible-), which gpuvm-ansible(7) lists.
requirements:
  - gpuvm 0.1.0 or newer on the managed host
author:
  - gpuvm contributors (@gpuvm)
'''
