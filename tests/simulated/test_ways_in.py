"""Every way to get a simulated NPU, as a user takes it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

NPUKIT = [sys.executable, "-m", "npukit"]


def succeed(*command: str, cwd: Path | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that says which devices it sees and what it was given."""
    path = tmp_path / "script.py"
    path.write_text(
        "import sys, torch\n"
        "x = torch.ones(3, device='npu')\n"
        "print(torch.npu.device_count(), torch.npu.get_device_name(), x.sum().item(), *sys.argv[1:])\n"
    )
    return path


def test_run_a_module_with_options_of_its_own(script: Path) -> None:
    options = ["run", "--device", "sim", "--card", "910B1", "-m", "script", "--card", "mine", "--devices", "7", "-x"]
    assert succeed(*NPUKIT, *options, cwd=script.parent) == "1 Ascend910B1 3.0 --card mine --devices 7 -x"


@pytest.mark.parametrize(("choice", "told"), [("'cpu'", True), ("torch.accelerator.current_accelerator()", False)])
def test_a_cuda_script_that_left_the_npu_idle_is_told_of_auto(choice: str, told: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        f"inputs = torch.ones(2, device='cuda' if torch.cuda.is_available() else {choice})\n"
        "print(inputs.device.type)"
    )
    result = subprocess.run([*NPUKIT, "run", "--device", "sim", str(script)], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "cpu\n" if told else "npu\n")
    assert ("--auto" in result.stderr) == told


def test_the_exit_code_and_signals_are_the_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "while True:\n    time.sleep(0.05)\n"
    )
    process = subprocess.Popen([*NPUKIT, "run", "--device", "sim", str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 7


def test_ranks_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys, time\nopen(f'{sys.argv[1]}/{os.getpid()}.pid', 'w')\ntime.sleep(3600)")
    launcher = subprocess.Popen([*NPUKIT, "run", "--device", "sim", "--devices", "2", str(script), str(tmp_path)])

    def started() -> list[int]:
        return [int(file.stem) for file in tmp_path.glob("*.pid")]

    wait_until(lambda: len(started()) == 2, lambda: f"ranks {started()}, launcher's exit code {launcher.poll()}")
    ranks = started()
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not any(map(is_alive, ranks)), lambda: f"alive: {[*filter(is_alive, ranks)]}")


def wait_until(is_so: Callable[[], bool], seen: Callable[[], str], seconds: float = 180) -> None:
    """Wait, and fail with what is seen instead once that takes too long."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, seen()
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_env_gives_any_command_of_a_shell_the_devices(script: Path) -> None:
    npukit = " ".join(NPUKIT)
    command = f'eval "$({npukit} sim env --devices 3)" && npu-list && {sys.executable} {script}'
    output = succeed("bash", "-euc", command)
    assert "/dev/davinci2 " in output and output.endswith("3 Ascend910B3 3.0")


ACTIVATED = """
    import multiprocessing, sys
    import npukit.simulate

    def devices(queue):
        import torch
        queue.put((torch.npu.device_count(), torch.ones(2, device="npu:1").sum().item()))

    class Numbers:
        def __len__(self):
            return 4
        def __getitem__(self, index):
            import torch
            return torch.npu.device_count() + index

    if __name__ == "__main__":
        npukit.simulate.activate(devices=2)
        import torch
        assert torch.ones(2, device="npu:1").sum().item() == 2
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        child = context.Process(target=devices, args=(queue,))
        child.start()
        assert queue.get(timeout=200) == (2, 2.0)
        child.join()
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1)
        print([batch.to("npu").tolist() for batch in loader])
"""


def test_activate_reaches_children_and_data_loader_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(ACTIVATED))
    assert succeed(sys.executable, str(script)) == "[[2, 3], [4, 5]]"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Somebody's tests, whose conftest imports torch at once."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text("import torch\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_them.py").write_text(
        "import torch\n"
        "def test_one(): assert torch.ones(2, device='npu').sum() == 2\n"
        "def test_two(): assert torch.npu.device_count() == 2\n"
    )
    return tmp_path


def pytest_there(project: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True).stdout


def test_pytest_option_gives_the_tests_devices_in_xdist_workers_too(project: Path) -> None:
    output = pytest_there(project, "--npu-sim=2", "-n", "1")
    assert "2 passed" in output and "npukit migrate" not in output


def test_pytest_option_reaches_tests_whose_plugin_imports_torch_before_it(project: Path) -> None:
    (project / "early.py").write_text("import torch\n")
    assert "2 passed" in pytest_there(project, "--npu-sim=2", "-p", "early")


def test_pytest_option_without_a_number_is_one_device_and_leaves_the_path_alone(project: Path) -> None:
    (project / "tests" / "test_cuda.py").write_text("import torch\ndef test_it(): torch.cuda.set_device(0)\n")
    output = pytest_there(project, "--npu-sim", "tests")
    assert "2 failed, 1 passed" in output
    assert "assert 1 == 2" in output
    assert "npukit migrate" in output, "what to do about tests that ask for CUDA"


def test_pytest_without_the_option_is_left_alone(project: Path) -> None:
    (project / "conftest.py").write_text("")
    (project / "tests" / "test_them.py").write_text(
        "import os, sys\n"
        "def test_one():\n"
        "    assert 'NPUKIT_SIM_DEVICES' not in os.environ\n"
        "    assert 'npukit.simulate.build' not in sys.modules and 'torch' not in sys.modules\n"
    )
    assert "1 passed" in pytest_there(project)


def test_torch_npu_finds_a_complete_machine_and_complains_only_of_what_concerns_the_user(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch_npu\n"
        "from torch_npu.utils.collect_env import get_cann_version\n"
        "half = torch.ones(8, 8, dtype=torch.bfloat16)\n"
        "half.npu() @ half.npu(), half @ half\n"
        "torch.nn.Linear(8, 8).npu().to(torch.float64)\n"
        "print(get_cann_version())\n"
    )
    result = subprocess.run([*NPUKIT, "run", "--device", "sim", str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "9.1.0\n"
    # Real cards of these generations get this one too.
    (complaint,) = [line for line in result.stderr.splitlines() if "32 padding size" not in line]
    assert "double" in complaint, "a type that NPUs do not have"
