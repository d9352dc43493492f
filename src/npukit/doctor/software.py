"""Checks of CANN, its kernels, Python and the packages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.doctor.check import Check, skip
from npukit.doctor.compatibility import nearest, pip_line, pythons_of, release_of
from npukit.doctor.problems import Trouble, trouble
from npukit.facts.cards import card, card_of
from npukit.facts.compatibility import aborts_beside_cuda
from npukit.facts.target import Target
from npukit.facts.versions import key, same, within
from npukit.machine.found import MachineState
from npukit.machine.installed import Cann
from npukit.report import Severity

CUDA_BUILD = re.compile(r"\+cu\d+$")  # in the version of torch
DRIVER_LIBRARY = re.compile(r"\blib(?:ascend_hal|drv\w*|dcmi|c_sec|mmpa)\.so")
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def cann(state: MachineState) -> Check:
    """Check that CANN is installed, set up in this shell, and compatible with the driver."""
    installed = state.cann
    if installed is None:
        if not state.has_npus:
            return skip("CANN", "not installed")
        return Check("CANN", "not found", (trouble("NPK910", remedy=_which_cann(state)),))
    if "nnrt" in installed.folder.split("/"):
        what = f"Only CANN's runtime for inference (nnrt) is installed, in {installed.folder}"
        return Check("CANN", "only nnrt", (trouble("NPK910", what, _which_cann(state)),))
    says = f"{installed.version} in {installed.folder}" + (", simulated" if state.simulated else "")
    return Check("CANN", says, tuple(_cann_troubles(state, installed)))


def _which_cann(state: MachineState) -> str:
    release = release_of(state.packages.get("torch_npu", ""))
    wanted = f"CANN {release.cann}, for torch_npu {release.torch_npu}" if release else "CANN"
    return f"Install {wanted}: the toolkit, then the kernels package for your card, and source its set_env.sh."


def _cann_troubles(state: MachineState, installed: Cann) -> Iterator[Trouble]:
    if not installed.in_use:
        command = f"source {installed.set_env}"
        what = f"CANN {installed.version} is installed, but not set up in this shell"
        remedy = f"Run `{command}`; add it to ~/.bashrc to have it in every shell."
        elsewhere = state.environ.get("ASCEND_HOME_PATH")
        evidence = f"ASCEND_HOME_PATH={elsewhere} does not contain CANN" if elsewhere else ""
        yield trouble("NPK911", what, remedy, evidence, commands=(command,))
    homes = {
        name: state.environ[name] for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if state.environ.get(name)
    }
    if (
        len({value.rstrip("/") for value in homes.values()}) > 1
        and len([cann for cann in state.canns if cann.in_use]) > 1
    ):
        yield trouble("NPK915", evidence=", ".join(f"{name}={value}" for name, value in homes.items()))
    elif installed.in_use and state.libraries_of not in ("", installed.folder):
        evidence = f"ASCEND_HOME_PATH={installed.folder}, LD_LIBRARY_PATH={state.libraries_of}…"
        yield trouble("NPK915", evidence=evidence)
    elif installed.in_use and state.operators_of not in ("", installed.folder):
        evidence = f"ASCEND_HOME_PATH={installed.folder}, ASCEND_OPP_PATH={state.environ['ASCEND_OPP_PATH']}"
        yield trouble("NPK915", evidence=evidence)
    if state.stub_of_driver and state.has_npus and not state.simulated:
        yield trouble("NPK918", evidence=f"libascend_hal.so is found first in {state.stub_of_driver}")
    hal = state.driver.hal_version if state.driver else ""
    if hal and installed.hal_limits and within(hal, installed.hal_limits) is False:
        yield trouble("NPK914", evidence=f"driver interface {hal}, but CANN requires {installed.hal_limits}")


def kernels(state: MachineState) -> Check:
    """Check that CANN's kernels are installed for these cards."""
    installed = state.cann
    if state.simulated:
        return skip("Kernels", "simulated, needs none")
    if installed is None or not state.has_npus:
        return skip("Kernels", "no CANN" if state.has_npus else "no cards")
    known = [model for chip in state.visible_chips if (model := card_of(chip.name))]
    training = [one for one in known if one.trains] or known  # cards that cannot train need none
    wanted = sorted({one.kernels for one in training})
    package = "Install the kernels (ops) package for {} in version " + installed.version + "."
    says = ", ".join(installed.kernels) or "none"
    if not installed.kernels:
        remedy = package.format(wanted[0] if wanted else "your card")
        return Check("Kernels", says, (trouble("NPK912", remedy=remedy),))
    if not wanted:
        return Check("Kernels", f"{says}; the type of card is unknown")
    image = " Or start the container from the image for these cards." if state.in_container else ""
    troubles = (
        trouble("NPK913", f"The kernels are for {says}, the cards need {folder}", package.format(folder) + image)
        for folder in wanted
        if folder not in installed.kernels
    )
    return Check("Kernels", says, tuple(troubles))


def packages(state: MachineState) -> Check:
    """Check that the versions of torch, torch_npu, CANN and Python are compatible."""
    listed = [
        f"Python {state.python}",
        *(f"{name} {version}" for name, version in state.packages.items() if name != "numpy"),
    ]
    says = ", ".join(listed)
    return Check("Packages", says, tuple(_package_troubles(state)) if state.has_npus else ())


def _package_troubles(state: MachineState) -> Iterator[Trouble]:
    torch, torch_npu = state.packages.get("torch", ""), state.packages.get("torch_npu", "")
    good = nearest(torch, torch_npu, state.cann.version if state.cann else "", state.python)
    line = pip_line(good, torch, torch_npu) if good else ""
    commands = (line,) if line else ()
    remedy = f"Run `{line}` (made for CANN {good.cann})." if good else ""
    for name, other in state.foreign_wheels.items():
        command = f"pip install --force-reinstall --no-deps {name}=={state.packages[name]}"
        what = f"{name} was built for {other}, which is not this one's"
        yield trouble("NPK929", what, f"Run `{command}` with the Python that trains.", commands=(command,))
    if not torch:
        yield trouble("NPK920", remedy=remedy, commands=commands)
        return
    pythons = pythons_of(torch)
    if pythons and ".".join(state.python.split(".")[:2]) not in pythons:
        what = f"There is no torch_npu for Python {state.python} with torch {torch}"
        yield trouble("NPK925", what, f"Create an environment with Python {' or '.join(pythons)}.")
    if not torch_npu:
        yield trouble("NPK921", remedy=remedy, commands=commands)
        return
    wanted = state.torch_wanted or ".".join(torch_npu.split(".")[:3])
    if not same(wanted, torch):
        yield trouble(
            "NPK922",
            f"torch_npu {torch_npu} was made for torch {wanted}, but torch is {torch}",
            remedy,
            commands=commands,
        )
    elif state.cann:
        yield from _cann_for(state, torch_npu, state.cann.version, remedy, commands)
    if not state.simulated and (state.torch_is_for_cuda or CUDA_BUILD.search(torch)):
        if aborts_beside_cuda(torch_npu):
            yield trouble("NPK927")
        else:
            yield trouble("NPK927", "torch is a build for CUDA", severity=Severity.warning)


def _cann_for(
    state: MachineState, torch_npu: str, cann: str, remedy: str, commands: tuple[str, ...]
) -> Iterator[Trouble]:
    release = release_of(torch_npu)
    if release is None:
        known = f" A listed combination: `{commands[0]}`." if commands else ""
        yield trouble(
            "NPK924",
            f"The published tables list no CANN version for torch_npu {torch_npu}, so CANN {cann} is unconfirmed",
            f"Nothing, unless something fails unexpectedly.{known}",
        )
    elif key(cann) < key(release.cann):
        what = f"torch_npu {torch_npu} was made for CANN {release.cann}, but CANN is {cann}"
        there = next((other for other in state.canns if same(other.version, release.cann)), None)
        if there is not None:
            command = f"source {there.set_env}"
            yield trouble("NPK923", what, f"CANN {there.version} is installed: run `{command}`.", commands=(command,))
            return
        yield trouble(
            "NPK923",
            what,
            f"Install CANN {release.cann}; or keep CANN {cann}: {remedy[0].lower()}{remedy[1:]}" if remedy else "",
        )
    elif not same(cann, release.cann):
        what = f"torch_npu {torch_npu} was made for CANN {release.cann}; the newer {cann} is not listed with it"
        yield trouble("NPK924", what, f"Nothing, unless something fails unexpectedly. {remedy}")


def target(state: MachineState, wanted: Target) -> Check:
    """Check that the machine has the card and the versions that the user prepares for."""
    there = {"torch_npu": state.packages.get("torch_npu", ""), "torch": state.packages.get("torch", "")}
    there["cann"] = state.cann.version if state.cann else ""
    names = [chip.name for chip in state.chips]
    is_card = {card(wanted.card).name, card(wanted.card).smi_name} & {*names}
    there["card"] = wanted.card if is_card else ", ".join(sorted({*names}))
    differs = wanted.differences(there)
    if not differs:
        return Check("Target", f"this machine has {wanted}")
    listed = ", ".join(f"{name} is {version or 'missing'}, not {want}" for name, (want, version) in differs.items())
    commands = [f"{name}=={differs[name][0]}" for name in ("torch", "torch_npu") if name in differs]
    pip = (f"pip install {' '.join(commands)}",) if commands else ()
    return Check("Target", "not this machine", (trouble("NPK928", evidence=listed, commands=pip),))


def _driver_libraries(state: MachineState) -> str:
    """Return the remedy for a missing library of the driver, which CANN's set_env.sh does not make available."""
    folder = f"{state.driver.folder if state.driver else '/usr/local/Ascend/driver'}/lib64"
    command = f"export LD_LIBRARY_PATH={folder}:{folder}/common:{folder}/driver:$LD_LIBRARY_PATH"
    mount = " In a container it has to be mounted: `npukit container` prints the command." if state.in_container else ""
    return f"The library is the driver's: run `{command}`.{mount}"


def imports(state: MachineState) -> Check:
    """Check that `import torch` works although torch loads torch_npu automatically."""
    if "torch_npu" not in state.packages:
        return skip("Import", "torch_npu is not installed")
    if state.missing_library is None:
        return skip("Import", "unknown: CANN's libraries took too long to load")
    if not state.missing_library:
        return Check("Import", "torch_npu finds CANN's libraries")
    if state.environ.get(AUTOLOAD) == "0":
        only_torch = f"`import torch` works because {AUTOLOAD}=0; `import torch_npu` will fail"
        severity = Severity.error if state.has_npus else Severity.note
        return Check(
            "Import", only_torch, (trouble("NPK926", only_torch, evidence=state.missing_library, severity=severity),)
        )
    if state.has_npus:
        remedy = _driver_libraries(state) if DRIVER_LIBRARY.search(state.missing_library) else ""
        return Check("Import", "will fail", (trouble("NPK926", remedy=remedy, evidence=state.missing_library),))
    command = f"export {AUTOLOAD}=0"
    remedy = f"Run `{command}`, so that torch does not load torch_npu; or uninstall torch_npu here."
    return Check(
        "Import", "will fail", (trouble("NPK926", remedy=remedy, evidence=state.missing_library, commands=(command,)),)
    )
