from __future__ import annotations

import json
import os
import platform
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npukit.doctor.check import CheckState
from npukit.doctor.compatibility import nearest, pip_line
from npukit.doctor.diagnosis_text import as_text, fix_script, verdict
from npukit.doctor.examine import Diagnosis, examine
from npukit.facts.target import Target
from npukit.facts.variables import variables
from npukit.facts.versions import key
from npukit.machine import Machine, ProgramResult
from npukit.simulate import environment

NAMES: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[1] / "machine" / "machines.py"))
MACHINES, Tree = NAMES["MACHINES"], NAMES["Tree"]


def diagnosis_of(describe: Callable[[Any], None], root: Path, **variables: str) -> Diagnosis:
    tree = Tree(root)
    describe(tree)
    tree.environ |= variables
    return examine(tree.machine())


def codes(diagnosis: Diagnosis) -> list[str]:
    return [trouble.finding.code for trouble in diagnosis.troubles]


@pytest.mark.parametrize(("describe", "first"), MACHINES.items(), ids=lambda case: getattr(case, "__name__", case))
def test_doctor_names_the_first_thing_to_mend(
    describe: Callable[[Any], None], first: str | None, tmp_path: Path
) -> None:
    diagnosis = diagnosis_of(describe, tmp_path)
    text = as_text(diagnosis)
    if first is None:
        assert (codes(diagnosis), diagnosis.good) == ([], True), text
        assert all(check.state is not CheckState.skipped or check.title == "Links" for check in diagnosis.checks), text
        return
    assert diagnosis.first is not None and diagnosis.first.code == first, text
    assert first in verdict(diagnosis)
    assert diagnosis.first.remedy and diagnosis.first.why


def test_what_is_well_is_told(tmp_path: Path) -> None:
    text = as_text(diagnosis_of(NAMES["healthy_a3"], tmp_path))
    for part in (
        "16 x Ascend910 with 64 GiB",
        "25.5.0, firmware 7.8.0",
        "9.0.0 in /usr/local/Ascend/cann-9.0.0",
        "SIO",
    ):
        assert part in text
    assert "This machine can train on NPUs." in text


def test_the_container_and_the_gpus_are_told(tmp_path: Path) -> None:
    assert "Driver         25.5.0" in as_text(diagnosis_of(NAMES["container_with_libraries"], tmp_path / "three"))
    assert "2 x 910B3 with 64 GiB, in a container" in as_text(diagnosis_of(NAMES["container"], tmp_path / "one"))
    assert "NVIDIA A100" in as_text(diagnosis_of(NAMES["gpu_box"], tmp_path / "two"))


def test_remedies_are_of_this_machine(tmp_path: Path) -> None:
    def remedy(name: str) -> str:
        first = diagnosis_of(NAMES[name], tmp_path / name).first
        assert first is not None
        return first.what + " " + first.remedy

    assert "`pip install torch_npu==2.8.0.post2`" in remedy("other_torch"), "torch stays as it is"
    assert "Install CANN 8.5.0" in remedy("old_cann") and "torch_npu==2.6.0" in remedy("old_cann")
    assert "source /usr/local/Ascend/ascend-toolkit/latest/set_env.sh" in remedy("not_sourced")
    assert "for ascend910b in version 8.5.0" in remedy("no_kernels")
    assert "ASCEND_RT_VISIBLE_DEVICES=0,1,2,4,5,6,7" in remedy("busy") and "40911" in remedy("busy")
    assert "NPU 5" in remedy("unhealthy") and "npu-smi set -t reset -i 5 -c 0" in remedy("unhealthy")
    assert "64 MiB" in remedy("small_shm")
    assert "CANN 8.5.0, for torch_npu 2.9.0" in remedy("no_cann")


@pytest.mark.parametrize(
    ("variables", "code", "expected"),
    [
        ({"ASCEND_RT_VISIBLE_DEVICES": "0, 1"}, "NPK933", "ASCEND_RT_VISIBLE_DEVICES=0,1"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "3,1"}, "NPK933", "ASCEND_RT_VISIBLE_DEVICES=1,3"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,8"}, "NPK935", "0 to 7"),
        ({"ASCEND_RT_VISIBLE_DEVICE": "0"}, "NPK931", "did you mean ASCEND_RT_VISIBLE_DEVICES?"),
        ({"HCCL_CONECT_TIMEOUT": "600"}, "NPK931", "did you mean HCCL_CONNECT_TIMEOUT?"),
        ({"HCCL_CONNECT_TIMEOUT": "60"}, "NPK933", "HCCL_CONNECT_TIMEOUT=120"),
        ({"HCCL_ASYNC_ERROR_HANDLING": "1"}, "NPK932", "TORCH_HCCL_ASYNC_ERROR_HANDLING=1"),
        ({"HCCL_INTRA_ROCE_ENABLE": "1", "HCCL_INTRA_PCIE_ENABLE": "1"}, "NPK930", "not both"),
        ({"ASCEND_LAUNCH_BLOCKING": "1", "TASK_QUEUE_ENABLE": "2"}, "NPK930", "unset ASCEND_LAUNCH_BLOCKING"),
        ({"HCCL_EXEC_TIMEOUT": "3600", "HCCL_EVENT_TIMEOUT": "1800"}, "NPK930", "HCCL_EVENT_TIMEOUT=3632"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "NPK934", "has no effect"),
        ({"HCCL_SOCKET_IFNAME": "bond4"}, "NPK951", "eth0"),
        ({"TASK_QUEUE_ENABLE": "3"}, "NPK933", "TASK_QUEUE_ENABLE=1"),
    ],
)
def test_variables(variables: dict[str, str], code: str, expected: str, tmp_path: Path) -> None:
    diagnosis = diagnosis_of(NAMES["healthy_a2"], tmp_path, **variables)
    findings = [trouble.finding for trouble in diagnosis.troubles]
    assert [finding.code for finding in findings] == [code]
    assert expected in findings[0].what + findings[0].remedy


def test_variables_that_are_right_are_left_alone(tmp_path: Path) -> None:
    right = {variable.name: variable.default for variable in variables().values() if variable.default}
    others = {"ASCEND_SOMETHING_NEW": "1", "HCCL_SOCKET_IFNAME": "eth", "PYTHONPATH": "x", "EDITOR": "vi"}
    assert codes(diagnosis_of(NAMES["healthy_a2"], tmp_path, **right, **others)) == []


def test_a_build_of_torch_for_cuda_is_told_beside_what_else_is_wrong(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["healthy_a2"](tree)
        tree.installs("torch", "2.8.0+cu126")

    assert set(codes(diagnosis_of(describe, tmp_path))) == {"NPK922", "NPK927"}


def test_only_visible_cards_are_judged_by_their_type(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["healthy_a2"](tree)
        tree.says("npu-smi", "info", NAMES["smi_info"]([("910B3", "OK", "")] * 4 + [("310P3", "OK", "")] * 4))

    assert codes(diagnosis_of(describe, tmp_path / "some", ASCEND_RT_VISIBLE_DEVICES="0,1,2,3")) == []
    mixed = diagnosis_of(describe, tmp_path / "all")
    assert codes(mixed) == ["NPK917"] and mixed.good
    assert mixed.troubles[0].commands == ("export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3",)


def test_the_right_cann_is_used_where_it_is_installed(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["healthy_a2"](tree)
        NAMES["with_cann"](tree, "/usr/local/Ascend/cann-8.1.RC1", "8.1.RC1")

    first = diagnosis_of(describe, tmp_path).first
    assert first is not None and first.code == "NPK923"
    assert "source /usr/local/Ascend/ascend-toolkit/latest/set_env.sh" in first.remedy


def _with(text: dict[str, str], before: str = "healthy_a2") -> Callable[[Any], None]:
    def describe(tree: Any) -> None:
        NAMES[before](tree)
        for path, content in text.items():
            tree.write(path, content)

    return describe


LISTENING = "  sl  local_address rem_address   st\n   0: 00000000:EA61 00000000:0000 0A 00000000:00000000\n"
SMI = "/usr/local/bin/npu-smi.answers/info"


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"/usr/local/Ascend/firmware/version.info": "Version=6.4.0\n"}, "NPK903"),
        ({"/usr/local/bin/npu-smi.answers/info -t board -i 0": "Compatibility : NOK\n"}, "NPK903"),
        ({SMI: "dcmi module initialize failed. ret is -8005\n"}, "NPK904"),
        ({f"{NAMES['CANN']}/runtime/version.info": "required_driver_ascendhal_version=[8.0.0,9.0.0]\n"}, "NPK914"),
        ({SMI: NAMES["smi_info"]([("910B3", "OK", "30000 / 65536")] * 8)}, "NPK908"),
        ({SMI: NAMES["smi_info"]([("910B3", "Warning", "")] * 8)}, "NPK907"),
        ({f"{SMI} -t topo": NAMES["topology"](8, lambda a, b: "HCCS" if a // 4 == b // 4 else "SYS")}, "NPK942"),
        ({"/proc/self/status": "Cpus_allowed_list:\t400-410\n"}, "NPK943"),
        ({"/proc/net/tcp": LISTENING}, "NPK950"),
        ({"/usr/local/bin/df.answers/-Pk .": "Filesystem\n/dev/sda1 9 9 1000 1% /\n"}, "NPK941"),
        ({"/sys/class/net/bond0/operstate": "up\n"}, "NPK952"),
        ({"/sys/class/net/docker0/operstate": "up\n"}, None),
        (
            {"/proc/self/limits": "Max open files            1024                 1048576              files\n"},
            "NPK944",
        ),
        ({"/proc/self/limits": "Max open files            65536                1048576              files\n"}, None),
    ],
)
def test_single_faults(files: dict[str, str], code: str | None, tmp_path: Path) -> None:
    assert sorted(set(codes(diagnosis_of(_with(files), tmp_path)))) == ([code] if code else [])


def test_a_library_of_the_driver_is_not_brought_by_cann(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    NAMES["container"](tree)
    missing = ProgramResult("OSError: libascend_hal.so: cannot open shared object file: No such file or directory", 1)
    run = tree.run
    tree.run = lambda command, *others: missing if command[0] == sys.executable else run(command, *others)
    first = examine(tree.machine()).first
    assert first is not None and first.code == "NPK926"
    assert "/usr/local/Ascend/driver/lib64/driver" in first.remedy and "npukit container" in first.remedy


def test_a_missing_device_file(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["container"](tree)
        tree.remove("/dev/hisi_hdc")

    first = diagnosis_of(describe, tmp_path).first
    assert first is not None and (first.code, first.what) == ("NPK906", "/dev/hisi_hdc is missing")


def test_a_card_that_npu_list_names_needs_its_file(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["container"](tree)
        tree.remove("/dev/davinci1")

    first = diagnosis_of(describe, tmp_path).first
    assert first is not None and first.what == "/dev/davinci1 is missing"


def test_a_name_is_deprecated_from_a_release_on(tmp_path: Path) -> None:
    def with_cann_9_2(tree: Any) -> None:
        NAMES["healthy_a2"](tree)
        NAMES["with_cann"](tree, version="9.2.0")

    old = {"ASCEND_SLOG_PRINT_TO_STDOUT": "1"}
    assert codes(diagnosis_of(NAMES["healthy_a2"], tmp_path / "one", **old)) == []
    assert codes(diagnosis_of(with_cann_9_2, tmp_path / "two", **old)) == ["NPK932", "NPK924"]


def test_two_canns_at_once(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["healthy_a2"](tree)
        NAMES["with_cann"](tree, "/usr/local/Ascend/cann-8.5.0")
        tree.environ["ASCEND_TOOLKIT_HOME"] = NAMES["CANN"]

    assert codes(diagnosis_of(describe, tmp_path)) == ["NPK915"]


def test_libraries_of_another_cann_than_the_variables_name(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["healthy_a2"](tree)
        NAMES["with_cann"](tree, "/usr/local/Ascend/cann-8.5.0")
        tree.environ["LD_LIBRARY_PATH"] = f"/usr/lib64:{NAMES['CANN']}/lib64:/usr/local/Ascend/cann-8.5.0/lib64"

    assert codes(diagnosis_of(describe, tmp_path)) == ["NPK915"]


def test_a_runtime_for_inference_is_no_cann_to_train_with(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["with_cards"](tree)
        NAMES["with_packages"](tree)
        NAMES["with_cann"](tree, "/usr/local/Ascend/nnrt/8.5.0")

    first = diagnosis_of(describe, tmp_path).first
    assert first is not None and first.code == "NPK910"


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = {"ASCEND_HOME_PATH": "/gone", "ASCEND_TOOLKIT_HOME": "/gone", "LD_LIBRARY_PATH": "/gone/lib64"}
    first = diagnosis_of(NAMES["healthy_a2"], tmp_path, **gone).first
    assert first is not None and first.code == "NPK911" and "/gone" in first.evidence


OTHER_PROCESSOR = "aarch64" if platform.machine() == "x86_64" else "x86_64"


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        (["cp311-cp311-manylinux_2_28_{0}"], True),
        (["cp310-cp310-manylinux_2_28_{1}"], True),
        (["cp311-cp311-manylinux_2_28_{1}"], False),
        (["cp39-abi3-manylinux_2_28_{1}"], False),
        (["py3-none-any"], False),
    ],
)
def test_packages_of_another_processor_or_python(tags: list[str], found: bool, tmp_path: Path) -> None:
    text = "".join(f"Tag: {tag.format(OTHER_PROCESSOR, platform.machine())}\n" for tag in tags)
    diagnosis = diagnosis_of(_with({"/site-packages/torch_npu-2.9.0.dist-info/WHEEL": text}), tmp_path)
    assert codes(diagnosis) == (["NPK929"] if found else [])


def test_libraries_that_load_slowly_are_not_judged(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    NAMES["healthy_a2"](tree)
    answers = tree.run
    tree.run = lambda command, *rest: (
        ProgramResult(late=True) if command[0] == sys.executable else answers(command, *rest)
    )
    diagnosis = examine(tree.machine())
    assert diagnosis.good and "took too long to load" in as_text(diagnosis)


def test_old_cards_lack_bf16_and_old_kernels_fit_them(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["with_cards"](tree, "910A")
        NAMES["with_cann"](tree, kernels="ascend910")
        NAMES["with_packages"](tree)

    diagnosis = diagnosis_of(describe, tmp_path)
    assert (codes(diagnosis), diagnosis.good, diagnosis.first) == (["NPK916"], True, None)


def test_what_the_table_does_not_know_is_called_unknown(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["healthy_a2"](tree)
        NAMES["with_packages"](tree, "2.13.0", "2.13.0")

    diagnosis = diagnosis_of(describe, tmp_path)
    assert (codes(diagnosis), diagnosis.good) == (["NPK924"], True)
    assert "torch_npu 2.13.0" in as_text(diagnosis)


def test_a_cuda_build_of_torch_is_seen_and_is_an_error_where_torch_npu_aborts(tmp_path: Path) -> None:
    def describe(tree: Any, version: str) -> None:
        NAMES["healthy_a2"](tree)
        NAMES["with_packages"](tree, version, version)
        tree.write("/site-packages/torch/lib/libc10_cuda.so", "")

    aborts = diagnosis_of(lambda tree: describe(tree, "2.13.0"), tmp_path / "one")
    works = diagnosis_of(lambda tree: describe(tree, "2.9.0"), tmp_path / "two")
    assert "NPK927" in codes(aborts) and not aborts.good
    assert "NPK927" in codes(works) and works.good


def test_cards_that_are_not_visible_are_not_judged(tmp_path: Path) -> None:
    smi = NAMES["smi_info"]([("910B3", "Alarm" if number == 3 else "OK", "") for number in range(8)])
    assert not diagnosis_of(_with({SMI: smi}), tmp_path / "all").good
    without = diagnosis_of(_with({SMI: smi}), tmp_path / "without", ASCEND_RT_VISIBLE_DEVICES="0,1,2,4,5,6,7")
    assert without.good and codes(without) == ["NPK907"]


def test_a_card_for_inference_does_not_train(tmp_path: Path) -> None:
    smi = NAMES["smi_info"]([("310P3", "OK", "")] * 2)
    kernels = {f"{NAMES['CANN']}/opp/built-in/op_impl/ai_core/tbe/kernel/ascend310p/x.json": ""}
    diagnosis = diagnosis_of(_with({SMI: smi} | kernels), tmp_path)
    assert diagnosis.first is not None and diagnosis.first.code == "NPK917" and not diagnosis.good


@pytest.mark.parametrize(
    ("torch", "torch_npu", "cann", "line"),
    [
        ("2.7.1", "2.8.0", "8.5.0", "torch_npu"),  # torch has a torch_npu for this CANN
        ("2.8.0", "", "8.5.0", "torch_npu"),
        ("2.6.0", "2.6.0", "8.1.rc1", ""),
    ],
)
def test_no_more_packages_are_changed_than_needed(torch: str, torch_npu: str, cann: str, line: str) -> None:
    release = nearest(torch, torch_npu, cann, "3.10")
    assert release is not None
    changed = [word.partition("==")[0] for word in pip_line(release, torch, torch_npu).split()[2:]]
    assert changed == ([line] if line else changed)


@pytest.mark.parametrize("cann", ["8.2.rc1", "8.4.9", "9.9.0", "7.0.0"])
def test_no_versions_are_offered_for_a_cann_that_is_not_there(cann: str) -> None:
    release = nearest("2.5.1", "2.5.1", cann, "3.10")
    assert release is None or key(release.cann) <= key(cann)


def test_a_target_is_held_against_the_machine(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    NAMES["healthy_a2"](tree)
    assert examine(tree.machine(), Target.of(torch_npu="2.9", cann="8.5.0")).good
    other = examine(tree.machine(), Target.of(torch_npu="2.7", card="910_9391"))
    assert codes(other)[-1] == "NPK928"
    assert {"torch_npu", "card"} <= {*re.findall(r"(\w+) is", other.checks[-1].troubles[0].finding.evidence)}


def test_python_and_missing_packages(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["healthy_a2"](tree)
        tree.python = "3.7.5"
        tree.remove("/site-packages/torch_npu-2.9.0.dist-info")

    assert codes(diagnosis_of(describe, tmp_path)) == ["NPK925", "NPK921"]


def test_torch_npu_without_cann_breaks_torch_on_a_laptop(tmp_path: Path) -> None:
    def describe(tree: Any) -> None:
        NAMES["laptop"](tree)
        NAMES["with_packages"](tree)

    diagnosis = diagnosis_of(describe, tmp_path / "one")
    assert codes(diagnosis) == ["NPK901", "NPK926"]
    assert "export TORCH_DEVICE_BACKEND_AUTOLOAD=0" in fix_script(diagnosis)
    mended = diagnosis_of(describe, tmp_path / "two", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert mended.troubles[-1].finding.severity.value == "note"


def test_the_fix_script_is_shell_that_holds_the_commands(tmp_path: Path) -> None:
    script = fix_script(diagnosis_of(NAMES["conflicting"], tmp_path / "one", HCCL_CONNECT_TIMEOUT="1"))
    assert "unset PYTORCH_ALLOC_CONF\n" in script and "export HCCL_CONNECT_TIMEOUT=120\n" in script
    file = tmp_path / "fix.sh"
    file.write_text(script + 'echo "$HCCL_CONNECT_TIMEOUT"')
    assert subprocess.run(["sh", str(file)], capture_output=True, text=True).stdout == "120\n"
    misspelt = fix_script(diagnosis_of(NAMES["healthy_a2"], tmp_path / "three", HCCL_BUFSIZE="1; touch x\ny"))
    assert "unset HCCL_BUFSIZE\nexport HCCL_BUFFSIZE='1; touch x\ny'\n" in misspelt
    by_hand = fix_script(diagnosis_of(NAMES["no_driver"], tmp_path / "two"))
    assert "# By hand: Install the Ascend driver" in by_hand


def test_nothing_that_programs_do_crashes_it(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    NAMES["healthy_a2"](tree)
    for answer in (
        ProgramResult(late=True),
        ProgramResult(),
        ProgramResult("\x00|||\n| 1 |", 0),
        ProgramResult("Traceback", 139),
    ):
        machine = Machine(tmp_path, lambda *_, answer=answer: answer, tree.environ, python_paths=[tmp_path])
        assert examine(machine).checks


def test_a_slow_npu_smi_is_no_fault_of_the_cards(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    NAMES["healthy_a2"](tree)
    answers = tree.run
    tree.run = lambda command, *rest: ProgramResult(late=True) if "npu-smi" in command[0] else answers(command, *rest)
    diagnosis = examine(tree.machine())
    assert (codes(diagnosis), diagnosis.good) == ([], True)
    assert "npu-smi took longer than a second" in as_text(diagnosis)


def test_files_that_cannot_be_read_crash_nothing(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    NAMES["healthy_a2"](tree)
    for path in ("/proc/meminfo", "/etc/ascend_install.info", "/usr/local/Ascend/driver/version.info"):
        tree.remove(path)
        (tmp_path / path.lstrip("/")).mkdir()
    (tmp_path / "proc/mounts").write_bytes(b"\xff\xfe\x00 /dev/shm tmpfs size=zz")
    assert examine(tree.machine()).checks


def npukit(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "npukit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ})


def test_the_command_tells_json_and_imports_no_torch(tmp_path: Path) -> None:
    code = "import sys; sys.argv[1:] = ['doctor', '--json']\nfrom npukit.cli import main\ntry: main()\n"
    code += "finally: print('torch' in sys.modules, file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    diagnosis = json.loads(result.stdout)["result"]
    assert result.returncode == (0 if diagnosis["good"] else 1)
    assert result.stderr.strip() == "False"
    assert {check["state"] for check in diagnosis["checks"]} <= {"good", "warning", "error", "skipped"}


def test_a_simulated_machine_is_good_and_called_simulated() -> None:
    result = json.loads(npukit("doctor", "--json", **environment(devices=2)).stdout)["result"]
    assert (result["good"], result["simulated"]) == (True, True)
    states = {check["title"]: check["state"] for check in result["checks"]}
    simulated = ("NPUs", "Health", "CANN", "Packages", "Import", "Links")  # the rest is this host's disk and ports
    assert {title: states[title] for title in simulated} == dict.fromkeys(simulated, "good")


def test_the_command_writes_the_fix_script(tmp_path: Path) -> None:
    file = tmp_path / "fix.sh"
    npukit("doctor", "--fix-script", str(file))
    assert file.read_text().startswith("# Written by `npukit doctor --fix-script`")
    assert list(tmp_path.iterdir()) == [file]
    refused = npukit("doctor", "--fix-script", str(tmp_path / "no" / "fix.sh"))
    assert refused.returncode == 2 and "Cannot write" in refused.stderr
