"""What is well and what is not, and how it is mended: this machine, a store, a cluster, a run.

Facts are looked up in one place (`facts`) and judged in another (`machine`), so that a judgement
can be tested on facts that no machine here has.
"""

from dnformer.doctor.check import Check
from dnformer.doctor.examine import Group, Report, examine
from dnformer.doctor.probe import check_storage

__all__ = ["Check", "Group", "Report", "check_storage", "examine"]
