# SPDX-License-Identifier: Apache-2.0
"""What the agent for MPI says about libraries and names."""

from __future__ import annotations

import pytest

from parprof.runtimes import agent_for_library
from parprof.runtimes.mpi import Mpi


@pytest.mark.parametrize(
    ("library", "known", "polls"),
    [
        ("libmpi.so.40.30.4", True, False), ("libopen-pal.so.40.30.2", True, True), ("libopen-rte.so.40", True, False),
        ("mca_btl_vader.so", True, True), ("mca_op_avx.so", True, False), ("mca_coll_tuned.so", True, False),
        ("libmca_common_sm.so.40.30.0", True, False), ("libmpi_mpifh.so.40", True, False),
        ("libmpich.so.12.2.2", True, True), ("libmpichfort.so.12", True, False), ("libmpi.so.12", True, True),
        ("libmpifort.so.12", True, False), ("libucp.so.0", True, True), ("libfabric.so.1", True, True),
        ("libpsm2.so.2.2", True, True), ("libpmix.so.2.6.2", True, False), ("pmix_mca_pcompress_zlib.so", True, False),
        ("mca_coll_libnbc.so", True, True), ("libuct_cma.so.0", True, False), ("libucm.so.0", True, False),
        ("libucs.so.0", True, True), ("libinfinipath.so.4.0", True, False),
        ("libpsml.so.1", False, False), ("libmpiwrap.so", False, False), ("libmpir.so.3", False, False),
        ("libmpfr.so.6", False, False), ("libucs2.so.0", False, False), ("libgomp.so.1", False, False),
    ],
)  # fmt: skip
def test_recognised_by_base_name(library: str, known: bool, polls: bool) -> None:
    agent = agent_for_library(library)
    assert (agent is not None and agent.name == "mpi") == known
    assert bool(known and Mpi.polls.match(library)) == polls


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PMPI_Barrier", "sync"), ("MPI_Allreduce", "sync"), ("mpi_waitall_", "sync"), ("MPI_Init", "other"),
        ("PMPI_Comm_split", "other"), ("opal_progress", "other"), ("ucs_callbackq_dispatch", "other"),
    ],
)  # fmt: skip
def test_kinds_of_overhead(name: str, kind: str) -> None:
    assert Mpi().overhead(name) == kind


def test_its_functions_are_known_by_name_where_it_is_linked_into_a_program() -> None:
    assert Mpi().owns("PMPI_Recv", "solver") and Mpi().owns("mpi_send_", "solver")
    assert not Mpi().owns("MPIDriver::run", "solver") and not Mpi().owns("mpi_setup", "solver")
