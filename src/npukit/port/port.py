"""Port a project from CUDA to NPUs on a separate branch: analyse, migrate, prove by running, and report.

All data is in the project's folder .npukit/port: the state, two worktrees (the commit that was ported, and the branch),
and the reports. The user's branch, index and files are never changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.doctor.examine import examine
from npukit.errors import NpukitError
from npukit.launch.commands import check_command
from npukit.launch.devices import Wanted, choose
from npukit.migrate.analysis import Analysis, analyze
from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate
from npukit.port.check import Ran, arguments_of, is_no_worse, run_in
from npukit.port.commits import commit_by_rule
from npukit.port.imports import ImportCheck, check_imports
from npukit.port.repository import Repository
from npukit.port.state import PortState, PortStep
from npukit.report.language import translated
from npukit.report.report import counted
from npukit.report.writing import make_folder
from npukit.verify import verify
from npukit.verify.text import as_text

_FOLDER = Path(".npukit", "port")
Log = Callable[[str], None]


@dataclass(frozen=True)
class Port:
    """A port and its progress."""

    project: Path
    folder: Path  # the folder of the reports
    migrated: Path  # the project in the branch's worktree
    branch: str
    base: str  # the commit that was ported
    uncommitted: bool  # whether the project has uncommitted changes, which were not ported
    steps: tuple[PortStep, ...]
    analysis: Analysis  # what is left on the branch

    @property
    def good(self) -> bool:
        """Whether nothing failed."""
        return all(step.outcome != "failed" for step in self.steps)

    @property
    def proven(self) -> bool:
        """Whether the project's tests or a training showed that the migrated project works."""
        return self.good and any(step.name in ("tests", "verify") and step.outcome == "passed" for step in self.steps)


def port(
    project: Path,
    command: Sequence[str] = (),
    style: Style = Style.portable,
    branch: str = "npukit/port",
    tests: str | None = None,
    data: Sequence[Path] = (),
    devices: int | None = None,
    log: Log = lambda _: None,
) -> Port:
    """Port the last commit of a project. A port that was interrupted continues.

    `command` is a short run for verify, such as ["python", "train.py", "--steps", "20"] or ["bash", "run.sh"]. By
    default it gets as many `devices` as it asks for. `tests` is the command for the project's tests: None for pytest if
    there are tests, "" for none. `data` are files outside git that tests and runs need; they are copied next to the
    code.

    >>> port(Path("nanoGPT"), ["python", "train.py", "--max_iters=5"]).good
    True
    """
    repository = Repository.of(project)
    work = project.resolve() / _FOLDER
    make_folder(work)
    (work.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    state = _begin(repository, work, branch, style)
    original, migrated = work / "original" / repository.project, work / "migrated" / repository.project
    if not original.is_dir():
        repository.add_worktree(work / "original", state.base)
    _bring(data, project, original)
    if command:
        check_command(command, original)
    steps = [_logged(log, state.once("doctor", "", _doctor))]
    steps.append(_logged(log, state.once("analyze", state.base, lambda: _analyze(original))))
    steps.append(_logged(log, _migrated(repository, state, work, migrated, log)))
    _bring(data, project, migrated)
    head = repository.head(state.branch)
    tests_command = _tests_of(original) if tests is None else tests
    key = f"{head} {tests_command}"
    steps.append(_logged(log, state.once("tests", key, lambda: _tests(tests_command, original, migrated, log))))
    key = f"{head} {' '.join(command)} {devices or ''}".rstrip()
    verified = state.once("verify", key, lambda: _verify(command, devices, original, migrated, log))
    steps.append(_logged(log, verified))
    dirty = repository.is_dirty()
    return Port(project, work, migrated, state.branch, state.base, dirty, tuple(steps), analyze([migrated]))


def _begin(repository: Repository, work: Path, branch: str, style: Style) -> PortState:
    """The state to continue from, or a new one for the last commit."""
    state = PortState.read(work / "state.json")
    if state and state.branch == branch and state.style == style.value:
        if repository.has_branch(branch) or not state.done("migrate", state.base):
            return state
    elif repository.has_branch(branch):
        raise NpukitError(
            f"There is already a branch {branch}, which `npukit port` did not create: choose another one with --branch."
        )
    for folder in ("original", "migrated"):
        repository.remove_worktree(work / folder)
    state = PortState(work / "state.json", repository.head(), branch, style.value)
    state.write()
    return state


def _logged(log: Log, step: PortStep) -> PortStep:
    log(f"{step.name}: {translated(step.says)}")
    return step


def _doctor() -> PortStep:
    diagnosis = examine()
    if diagnosis.good:
        return PortStep("doctor", "passed", "this machine can train on NPUs")
    why = f" ({diagnosis.first.what})" if diagnosis.first else ""
    return PortStep("doctor", "skipped", f"this machine cannot use an NPU{why}, so a simulated one is used")


def _analyze(original: Path) -> PortStep:
    return PortStep("analyze", "passed", analyze([original]).summary)


def _migrated(repository: Repository, state: PortState, work: Path, migrated: Path, log: Log) -> PortStep:
    if done := state.done("migrate", state.base):
        if not migrated.is_dir():  # the user may have removed it; the branch has everything
            repository.add_worktree(work / "migrated", state.branch)
        return done
    if repository.has_branch(state.branch):  # left by a port that was interrupted while writing
        repository.remove_worktree(work / "migrated")
        repository.delete_branch(state.branch)
    repository.add_worktree(work / "migrated", state.base, state.branch)
    migration = migrate(migrated, Goal(Style(state.style)))
    log(f"importing {counted(len(migration.changes), 'changed file')} before and after, on the CPU and simulated NPUs")
    checked = check_imports(migration, migrated)
    commits = list(commit_by_rule(checked.migration))
    places = sum(commit.places for commit in commits)
    lines = [f"{commit.name} {commit.code} {commit.title}: {counted(commit.places, 'place')}" for commit in commits]
    says = f"{counted(places, 'place')} changed in {counted(len(commits), 'commit')}; {_imports_in_words(checked)}"
    details = (*lines, *(f"{imported.file} was put back: {imported.error}" for imported in checked.put_back))
    return state.keep(state.base, PortStep("migrate", "failed" if checked.put_back else "passed", says, details))


def _imports_in_words(checked: ImportCheck) -> str:
    """A sentence on how many files import as before on every device."""
    tried = {imported.file for imported in checked.imported if imported.before in ("imports", "runs")}
    back = {imported.file for imported in checked.put_back}
    files = {imported.file for imported in checked.imported}
    parts = [f"{len(tried - back)} of {counted(len(files), 'file')} import as before on every device"]
    if files - tried:
        parts.append(f"{len(files - tried)} did not import before either")
    if back:
        parts.append(f"{counted(len(back), 'file')} put back, since the import broke")
    return ", ".join(parts)


def _bring(data: Iterable[Path], project: Path, target: Path) -> None:
    """Copy the files outside git that runs need."""
    for name in data:
        source = project / name
        if not source.exists():
            raise NpukitError(f"There is no {source}: --with takes paths inside the project.")
        if source.is_dir():
            shutil.copytree(source, target / name, dirs_exist_ok=True)
        else:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def _tests_of(project: Path) -> str:
    has_tests = any(next(project.rglob(pattern), None) for pattern in ("test_*.py", "*_test.py"))
    return "python -m pytest -q" if has_tests else ""


def _tests(command: str, original: Path, migrated: Path, log: Log) -> PortStep:
    argv = arguments_of(command)
    if not argv:
        return PortStep("tests", "skipped", "not run: there are no files that pytest would collect, or --test is empty")
    log(f"running {command} before and after")
    before = run_in(original, argv, choose(Wanted.cpu))
    runs = [run_in(migrated, argv, choose(wanted)) for wanted in (Wanted.cpu, Wanted.sim)]
    worse = [run for run in runs if not is_no_worse(before, run)]
    results = [f"before, on {before.device}: {_in_words(before)}"]
    results += [f"after, on {run.device}: {_in_words(run)}" for run in runs]
    if not any(map(_shows_something, (before, *runs))):
        lines = before.output.split("\n")
        says = f"nothing passes before or after ({lines[-1]}); {'; '.join(results)}"
        return PortStep("tests", "skipped", says, tuple(lines))
    last = worse[0].output.split("\n") if worse else ()
    return PortStep("tests", "failed" if worse else "passed", "; ".join(results), tuple(last))


def _shows_something(ran: Ran) -> bool:
    """Whether anything passed. A command that fails as a whole, such as pytest without a plugin, compares nothing."""
    return ran.passed or ran.counts.get("passed", 0) > 0


def _in_words(ran: Ran) -> str:
    if ran.exit_code is None:
        return "took too long"
    return ", ".join(f"{number} {word}" for word, number in ran.counts.items()) or f"exit code {ran.exit_code}"


def _verify(command: Sequence[str], devices: int | None, original: Path, migrated: Path, log: Log) -> PortStep:
    if not command:
        return PortStep(
            "verify", "skipped", "not run: end the command with a short training, as in `-- python train.py --steps 20`"
        )
    try:
        result = verify(original, migrated, command, devices=devices, log=log)
    except NpukitError as error:
        first, *rest = str(error).split("\n")
        return PortStep("verify", "failed", first, tuple(rest))
    lines = as_text(result).split("\n")
    says = "both runs computed the same" if result.same else next(line for line in lines[2:] if line).rstrip(":")
    return PortStep("verify", "passed" if result.same else "failed", says, tuple(line for line in lines if line))
