"""Every kind of report, as one type."""

from __future__ import annotations

from remat_cli.report.bench_run import BenchReport
from remat_cli.report.compare_report import CompareReport
from remat_cli.report.device_compile import DeviceCompileReport
from remat_cli.report.report import (
    CacheReport,
    CompileReport,
    InspectReport,
    ProfileReport,
    SolveReport,
    SolversReport,
    VerifyReport,
)
from remat_cli.report.run_report import RunReport
from remat_cli.report.training import MaxBatchReport, TrainReport

AnyReport = (
    CompileReport
    | DeviceCompileReport
    | VerifyReport
    | SolveReport
    | InspectReport
    | ProfileReport
    | CacheReport
    | SolversReport
    | TrainReport
    | MaxBatchReport
    | RunReport
    | BenchReport
    | CompareReport
)
