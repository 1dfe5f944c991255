"""How a rank starts: what it shares with the others, and what it imports itself.

Under torchrun, each rank is an interpreter that imports everything after its rank is known. Here a
host imports installed packages once, and forks; each rank imports the user's own code after its
environment is set. So RANK, run id or temporary folder in a module are the rank's own, as on the
cluster, and torch is imported only once.

1. :mod:`ownership` distinguishes the user's code from installed packages.
2. :mod:`import_scan` finds in the text of test files which installed packages they import.
3. :mod:`shared_preload` imports those of them in the host that ranks may share.
4. :mod:`pytest_config` sets up pytest in the host, without the user's plugins and conftest files,
   which :mod:`user_code` loads in the rank.
5. :mod:`collection` collects a test's file in the rank when its first test is due.
"""
