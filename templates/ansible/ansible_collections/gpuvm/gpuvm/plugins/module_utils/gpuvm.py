# -*- coding: utf-8 -*-
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs the program gpuvm for a module: its answers, errors and warnings."""

import json
import os
import re

from ansible.module_utils.basic import AnsibleModule

# The oldest program whose documents these modules read.
OLDEST = (0, 1, 0)
# Where programs lie that PATH may lack under sudo.
PLACES = ['/usr/local/bin', '/usr/bin']
# The code of the error that there is no domain of a name.
NO_DOMAIN = 'libvirt-no-domain'
# An answer that no program gives in full is not repeated in full.
SHOWN = 500


class GpuvmError(Exception):
    """An error of gpuvm, or of a module, as a document of C(gpuvm --json) says it."""

    def __init__(self, code, message, hint=None, causes=(), commands=(), **more):
        """Makes one; C(more): other values that the task returns."""
        super().__init__(message)
        self.code = code
        self.values = dict(more, code=code, message=ansible_words(message), hint=ansible_words(hint),
                           causes=[ansible_words(cause) for cause in causes], commands=list(commands))

    def sentence(self):
        """Returns message, causes and hint in one line."""
        said = ': '.join([self.values['message']] + self.values['causes'])
        return said + ('; hint: ' + self.values['hint'] if self.values['hint'] else '')


def ansible_words(text):
    """Returns a text of gpuvm in the words of a playbook: without a place in the description that the
    module wrote, fields with underscores."""
    if text is None:
        return None
    text = re.sub(r'^-:\d+:\d+: ', '', text)
    return re.sub(r'`([a-z][a-z0-9-]*): ', lambda field: '`%s: ' % field.group(1).replace('-', '_'), text)


def text(value):
    """Returns a value of an option that is one line of text. Refuses what YAML made something else of."""
    if isinstance(value, bool):
        raise TypeError('YAML reads it as a boolean; write it in quotes')
    if isinstance(value, float):
        raise TypeError('YAML reads it as the number %r, as it does with 0000:34:00.0; write it in quotes' % value)
    if isinstance(value, (list, tuple, dict, set)):
        raise TypeError('it takes one text')
    value = str(value)
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise TypeError('it has a line break or a control character')
    return value


def text_or_off(value):
    """Returns a text; C(off) without quotes is C(off)."""
    return 'off' if value is False else text(value)


def choice(value):
    """Returns one of several words, which Ansible compares; C(off) without quotes is C(off)."""
    return text_or_off(value)


def switch(value):
    """Returns one of several words of which two are C(on) and C(off), also without quotes."""
    return 'on' if value is True else text_or_off(value)


def path(value):
    """Returns an absolute path of the managed host, where a module's working directory is any."""
    value = text(value)
    full = os.path.expanduser(value)
    if not os.path.isabs(full):
        raise TypeError('%s is to be an absolute path of the managed host' % value)
    return full


def texts(value):
    """Returns a list of texts; one text is a list of one, also with commas in it."""
    return [text(one) for one in (value if isinstance(value, (list, tuple)) else [value])]


def paths(value):
    """Returns a list of absolute paths."""
    return [path(one) for one in (value if isinstance(value, (list, tuple)) else [value])]


def common_options():
    """Returns the options that all modules have."""
    return dict(
        program=dict(type=text, default='gpuvm'),
        connect=dict(type=text),
        host=dict(type=path),
    )


class Gpuvm(object):
    """The program on the managed host."""

    def __init__(self, module):
        """Finds it. Refuses one that is missing, older or another program."""
        self.module = module
        # The commands that were run, for the task's answer.
        self.ran = []
        wanted = module.params['program']
        self.program = module.get_bin_path(wanted, required=False, opt_dirs=PLACES)
        if self.program is None:
            raise GpuvmError('ansible-no-program', 'the managed host has no program `%s`' % wanted,
                             'install the package gpuvm there, or name the program with `program`')
        self.words = []
        if module.params['host']:
            self.words += ['--host=' + module.params['host']]
        if module.params['connect']:
            self.words += ['--connect=' + module.params['connect']]
        self.check_version()

    def check_version(self):
        """Refuses another program, and one whose documents are not these."""
        status, out, err = self.module.run_command([self.program, '--version'])
        found = re.match(r'gpuvm (\d+)\.(\d+)\.(\d+)', out)
        if status != 0 or found is None:
            said = (out + err).strip()[:SHOWN]
            raise GpuvmError('ansible-other-program', '`%s` is not gpuvm: %s' % (self.program, said),
                             'name the program with `program`', rc=status)
        if tuple(int(part) for part in found.groups()) < OLDEST:
            oldest = '.'.join(str(part) for part in OLDEST)
            raise GpuvmError('ansible-old-program',
                             '`%s` is %s, and this collection needs %s' % (self.program, out.strip(), oldest),
                             'install gpuvm %s or newer on the managed host' % oldest)

    def run(self, verb, words=(), form=None, data=None, statuses=(0,)):
        """Runs a verb with C(--json) and returns its answer; C(form): the format of the document.

        C(words) come after the verb, as they are; C(data): its standard input. Errors: those of gpuvm.
        """
        command = [self.program] + list(verb) + ['--json'] + self.words + list(words)
        self.ran.append(command)
        # Answers and errors are in one language, and no line of progress is coloured.
        surroundings = dict(LC_ALL='C.UTF-8', NO_COLOR='1')
        status, out, err = self.module.run_command(command, data=data, environ_update=surroundings)
        answer = self.read(out, form, (status, err), statuses)
        for line in err.splitlines():
            if line.startswith('warning: '):
                self.module.warn('gpuvm: ' + ansible_words(line[len('warning: '):]))
        return answer

    def read(self, out, form, ended, statuses):
        """Returns the answer that a program printed; C(ended): its status and what it said."""
        status, err = ended
        try:
            answer = json.loads(out) if out.strip() else None
        except ValueError:
            answer = out
        if isinstance(answer, dict) and answer.get('format') == 'gpuvm-error':
            raise GpuvmError(answer['code'], answer['message'], answer.get('hint'), answer.get('causes', ()),
                             answer.get('commands', ()), rc=status)
        found = answer.get('format') if isinstance(answer, dict) else None
        version = answer.get('version') if isinstance(answer, dict) else 1
        if status in statuses and found == form and version in (None, 1) and not isinstance(answer, str):
            return answer
        said = (out + err).strip()[:SHOWN]
        raise GpuvmError('ansible-bad-answer',
                         '`%s` ended with %s and no answer that this collection reads: %s' % (self.program, status, said),
                         'compare `gpuvm --version` with the version of this collection', rc=status, stderr=err[:SHOWN])


def main(spec, task):
    """Runs a task of a module: C(task) gets the program and returns what the task returns."""
    module = AnsibleModule(argument_spec=dict(common_options(), **spec), supports_check_mode=True)
    answer = dict(changed=False)
    gpuvm = None
    try:
        gpuvm = Gpuvm(module)
        task(gpuvm, answer)
    except GpuvmError as error:
        answer.update(error.values, cmd=gpuvm.ran[-1] if gpuvm is not None and gpuvm.ran else None)
        answer.pop('diff', None)
        module.fail_json(msg=error.sentence(), **answer)
    if not module._diff:
        answer.pop('diff', None)
    module.exit_json(**answer)
