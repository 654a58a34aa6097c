"""A callback that prints each result of a task as a line of JSON."""

import json

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: lines
type: stdout
short_description: results as lines of JSON
description: For the tests of the collection.
"""


class CallbackModule(CallbackBase):
    """The callback."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = 'stdout'
    CALLBACK_NAME = 'lines'

    def line(self, result, failed=False):
        """Prints a result, which does not say itself whether it failed; newer Ansible has it under another name."""
        found = result.result if hasattr(result, 'result') else result._result
        host = result.host if hasattr(result, 'host') else result._host
        print(json.dumps(dict(host=host.get_name(), result=dict(found, failed=failed)), default=str), flush=True)

    def v2_runner_on_ok(self, result):
        self.line(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self.line(result, True)

    def v2_runner_on_unreachable(self, result):
        self.line(result, True)
