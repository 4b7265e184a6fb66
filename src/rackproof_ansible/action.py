"""Define the base classes of the action plugins.

An action of a task on the controller is a :class:`RackproofAction`, and one that also contacts a node is a
:class:`NodeAction`. Both read their options from the documentation, and translate errors for Ansible.
"""

from __future__ import annotations

import inspect
import os
import re
import resource
import shlex
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

from rackproof.core.child_environment import CONTROLLER_SECRETS
from rackproof.core.errors import RackproofError
from rackproof.core.file_modes import hide_from_others
from rackproof.core.text import sanitize
from rackproof_ansible.argument_spec import read_argument_spec

SHOWN_CHARACTERS = 600
"""Largest number of characters of one line on the operator's terminal."""


class ModuleFailedError(Exception):
    """A module called by an action that did not return the expected result.

    Attributes:
        result: The module's result, which becomes the result of the task. An unreachable node is then
            reported as unreachable, not as failed.
    """

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(str(result.get("msg", "")))
        self.result = result


class RackproofAction(ActionBase):
    """The base of actions that run on the controller and contact no node.

    A subclass is in ``plugins/action/``, is called ``ActionModule``, and implements :meth:`run_action`.
    Its options are in the documentation of the module with the same name in ``plugins/modules/``.

    Attributes:
        operator_errors: Exceptions with a text for the operator. The task fails with that text. Any
            other exception is a defect, and keeps its traceback.
        required_if: Options that one value of another option requires, in the form of Ansible's
            validator. The documentation cannot express this.
        task_vars: Variables of the task's host.
    """

    _requires_connection = False
    operator_errors: tuple[type[Exception], ...] = (RackproofError,)
    required_if: tuple[tuple[str, object, list[str]], ...] = ()
    task_vars: dict[str, Any]

    @abstractmethod
    def run_action(self, options: dict[str, Any]) -> dict[str, Any]:
        """Do the task, and return its result.

        Args:
            options: The task's arguments, checked, converted, and with defaults.
        """

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check the task's arguments and do the task. Ansible calls this."""
        super().run(tmp, task_vars)
        hide_from_others()
        self.task_vars = task_vars or {}
        # A worker's parent is the playbook's own process.
        self._playbook_pid = os.getppid()
        _, options = self.validate_argument_spec(
            read_argument_spec(self._file.parents[1], self._file.stem), required_if=self.required_if
        )
        try:
            return self.run_action(options)
        except ModuleFailedError as error:
            return error.result
        except self.operator_errors as error:
            # Ansible would append the text of every cause, which repeats the same lines and adds
            # pydantic's own.
            raise AnsibleActionFail(sanitize(error, 4000, newlines=True)) from None

    @property
    def _file(self) -> Path:
        """Return the file of the plugin."""
        return Path(inspect.getfile(type(self))).resolve()

    @property
    def root(self) -> Path:
        """Return the folder with roles, playbooks and workloads."""
        return self._file.parents[2]

    @property
    def node(self) -> str:
        """Return the name in the inventory of the host that the task runs for."""
        return str(self.task_vars["inventory_hostname"])

    @property
    def hostvars(self) -> Mapping[str, Any]:
        """Return the variables of all hosts."""
        hostvars: Mapping[str, Any] = self.task_vars["hostvars"]
        return hostvars

    def raw_variables(self, host: str) -> Mapping[str, Any]:
        """Return a host's variables without evaluating them."""
        variables: Mapping[str, Any] = self.task_vars["hostvars"].raw_get(host)
        return variables

    @property
    def check_mode(self) -> bool:
        """Return whether nothing may be changed."""
        return bool(self._task.check_mode)

    @property
    def owner_pid(self) -> int | None:
        """Return the id of the process with which this task's claims end, or None in check mode."""
        return None if self.check_mode else self._playbook_pid

    def show_line(self, line: str) -> None:
        """Show a line while the task runs."""
        self._display.display(line)

    def show_warning(self, text: str) -> None:
        """Show a warning, made safe for a terminal. Do nothing if it is empty."""
        if text:
            self._display.warning(sanitize(text, limit=SHOWN_CHARACTERS))


class NodeAction(RackproofAction):
    """An action that runs on the controller and queries the task's host."""

    _requires_connection = True

    def execute_module(self, name: str, required_key: str, **arguments: Any) -> dict[str, Any]:
        """Run a module on the host, and return its result.

        Args:
            name: The name of the module.
            required_key: The key of its result that must be a mapping.
            arguments: The module's arguments.

        Raises:
            ModuleFailedError: The module failed, its result lacks the key, or the host cannot be reached.
        """
        result = self.execute_module_unchecked(name, **arguments)
        if result.get("failed") or result.get("unreachable"):
            raise ModuleFailedError(result)
        if not isinstance(result.get(required_key), dict):
            raise ModuleFailedError(
                {
                    "failed": True,
                    "msg": f"{self.node} answered {name} without the requested value ({required_key}): is "
                    "that its own python3? Run with -vvv to see its answer",
                }
            )
        return result

    def execute_module_unchecked(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Run a module on the host. Return its result, even if it is a failure."""
        result: dict[str, Any] = self._execute_module(
            module_name=name, module_args=arguments, task_vars=self.task_vars
        )
        return result

    def fetch_file(self, remote: str, local: Path, limit_bytes: int) -> None:
        """Copy a file from the host to the controller.

        Args:
            remote: The path of the file on the host. A pipe or device, or a link to one, is refused, because
                it may never end.
            local: The path of the copy.
            limit_bytes: The largest size in bytes. The copy ends there, even if the host stated another size.

        Raises:
            AnsibleError: The path is not a regular file, is too large, or could not be copied.
        """
        path = shlex.quote(remote)
        status, output, _ = self.run_command(f"[ -f {path} ] && stat -Lc %s {path}")
        size = (output.split() or [""])[-1]
        if status or not re.fullmatch("[0-9]{1,18}", size):
            raise AnsibleError(f"{self.node} has no plain file of this name")
        if int(size) > limit_bytes:
            raise AnsibleError(f"it has {size} bytes, more than {limit_bytes}")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # sftp and scp, which copy the file, inherit this limit.
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
        try:
            self._connection.fetch_file(remote, str(local))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def write_file(self, remote: str, text: str) -> None:
        """Write a file on the host."""
        self._transfer_data(remote, text)

    def run_script(self, script: str, limit_s: float) -> tuple[int, str]:
        """Run a shell script on the host, and return its exit status and output.

        Args:
            script: The text of the script, which is copied first, because a command line may be too short for
                it.
            limit_s: Seconds after which the host ends it, even if this process is gone.
        """
        path = self._connection._shell.join_path(self._make_tmp_path(), "script.sh")
        self.write_file(path, script)
        # With -k, children of the script that ignore SIGTERM and keep GPUs from the next job are killed.
        status, output, _ = self.run_command(f"timeout -k 10 {limit_s} bash {path}")
        return status, output

    def close_connection(self) -> None:
        """Close the connection to the host. The next command opens another one."""
        self._connection.close()

    def run_command(self, command: str) -> tuple[int, str, str]:
        """Run a shell command on the host. Return its exit status, output and error output."""
        # On the controller itself, a command inherits the environment of the playbook. srun would even send
        # it to every node.
        # No other user may write its files, even with a permissive umask.
        without_secrets = f"unset {' '.join(CONTROLLER_SECRETS)}; umask o-w; {command}"
        # A node's output need not be UTF-8.
        answer = self._low_level_execute_command(without_secrets, encoding_errors="surrogateescape")
        return answer["rc"], answer["stdout"], answer["stderr"]

    def run_command_of_playbook(self, command: str) -> tuple[int, str, str]:
        """Run a command as :meth:`run_command` does, but end this process if the playbook ended.

        A killed playbook leaves its workers behind. If one of them continued, it would start jobs beside
        the jobs of the next playbook.
        """
        if os.getppid() != self._playbook_pid:
            os._exit(1)
        return self.run_command(command)


def sanitize_lines(lines: list[str] | tuple[str, ...]) -> list[str]:
    """Return a message made safe for a terminal, line by line."""
    return [sanitize(line, limit=SHOWN_CHARACTERS) for line in lines]
