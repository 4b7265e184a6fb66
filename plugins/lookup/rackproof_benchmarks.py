"""Load benchmark definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = """
name: rackproof_benchmarks
short_description: Load validated benchmark definitions
description:
  - Returns the definitions of a suite, or those named, after validating all files of the folder.
  - An unknown name fails and offers near ones; a wrong definition fails with file, line and key.
options:
  _terms:
    description: Names of benchmarks. None means the whole suite.
    type: list
    elements: str
  suite:
    description: Name of a suite.
    type: str
    default: ""
  definitions:
    description: Folder of the definitions.
    type: path
    required: true
"""

EXAMPLES = """
- name: List what the quick suite runs
  ansible.builtin.debug:
    msg: "{{ chosen | map(attribute='name') }}"
  vars:
    chosen: "{{ query('rackproof_benchmarks', suite='quick', definitions='benchmarks') }}"
"""

RETURN = """
_list:
  description: Definitions, as docs/using/benchmarks.md describes them.
  type: list
  elements: dict
"""


class LookupModule(LookupBase):
    """See DOCUMENTATION."""

    def run(
        self, terms: list[str], variables: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Return the definitions as plain data."""
        from rackproof.core import definitions
        from rackproof.logs import FORMATS

        self.set_options(var_options=variables, direct=kwargs)
        try:
            chosen = definitions.select_benchmarks(
                definitions.load_definitions(Path(self.get_option("definitions")), log_formats=FORMATS),
                suite=self.get_option("suite"),
                benchmarks=terms,
            )
        except definitions.DefinitionError as error:
            raise AnsibleLookupError(str(error)) from None
        return [loaded.definition.model_dump(mode="json", by_alias=True) for loaded in chosen]
