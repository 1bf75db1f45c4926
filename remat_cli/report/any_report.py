"""Every kind of report, as one type."""

from __future__ import annotations

from remat_cli.report.bench_run import BenchReport
from remat_cli.report.compare_report import CompareReport
from remat_cli.report.compile import CompileReport, VerifyReport
from remat_cli.report.report import CacheReport, InspectReport, ProfileReport, SolveReport, SolversReport
from remat_cli.report.run_report import RunReport
from remat_cli.report.training import MaxBatchReport, TrainReport

AnyReport = (
    CompileReport
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
