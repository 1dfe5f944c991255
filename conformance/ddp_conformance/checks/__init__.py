"""One module for each group of guarantees; here is what makes a group.

1. ``checks/<group>.py``: the ``Guarantee`` records, the record half that runs in every
   rank (see :mod:`ddp_conformance.recording`), and the tuple ``CHECKS``. The registry
   finds the file by itself. Large groups may have several files.
2. ``checks/judge_<group>.py``: the judges, pure functions from histories to violations,
   with tests on hand-made histories in ``conformance/test_judges*.py``.
3. ``mutants/<group>.py``: a tuple ``MUTANTS`` with at least one for each guarantee, and a
   tuple ``TWINS``; ``test_mutants.py``, ``test_twins.py`` and ``test_launched.py`` run them.
4. ``conformance/SPEC.md``: one entry for each guarantee, in the words of the record.
5. Where needed: record types in :mod:`ddp_conformance.history`, traits in
   :mod:`ddp_conformance.traits`, a kind of subject in :mod:`ddp_conformance.subjects`.

The reference is put under the new checks in ``conformance/test_reference*.py``, one
file for each system.
"""
