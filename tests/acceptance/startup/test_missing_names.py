"""A torch without a private name that ranks need: an error names it, without a traceback of
ours."""

from __future__ import annotations

import os
from pathlib import Path

from tests.acceptance.habits.test_bad_input import FOUR_TESTS
from tests.acceptance.suite import INNER, Suite

WITHOUT = """
import importlib.abc
import importlib.machinery
import sys

MODULE, NAME = "torch.distributed.distributed_c10d", "_abort_process_group"


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            delattr(module, NAME)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
"""
LACKS = "lacks torch.distributed.distributed_c10d._abort_process_group, which ranks need"


def test_the_first_test_names_what_is_missing(suite: Suite, tmp_path: Path) -> None:
    suite.fresh = True  # a torch that is imported before lacks nothing
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WITHOUT)
    suite.write("test_it.py", FOUR_TESTS)
    path = os.pathsep.join([str(site), str(INNER)])
    run = suite.run(env={"PYTHONPATH": path}, timeout=120)
    run.assert_outcomes(error=3, passed=1)
    first, second = run["test_first"], run["test_second"]
    assert LACKS in first.text
    assert "docs/versions.md" in first.text
    assert "Traceback" not in first.text
    assert "see test_it.py::test_first" in second.text
    assert LACKS not in second.text
