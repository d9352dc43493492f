"""The process that chats, answers a batch or evaluates. A verb starts it and passes the job in a variable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.start import UseJob, taken_over


def main() -> None:
    """Run the job of this process. npukit.launch.script shows NpukitErrors."""
    job = taken_over()
    {"chat": _chat, "infer": _infer, "eval": _evaluate}[job.verb](job)


def _chat(job: UseJob) -> None:
    from npukit.inference.chat import Conversation
    from npukit.inference.loading import load, start_engine
    from npukit.inference.terminal import talk

    loaded = load(job.use)
    engine = start_engine(loaded, job.use.engine.model_copy(update={"max_num_seqs": 1}))
    sampling = replace(loaded.defaults, **job.use.sampling.of_an_answer())
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    with_adapters = f" with {', '.join(map(str, loaded.adapters))}" if loaded.adapters else ""
    greeting = f"{loaded.folder}{with_adapters}, {dtype} on {device_name(loaded.model.device)}"
    talk(Conversation(loaded, engine, sampling, job.use.sampling.stop), greeting)


def _infer(job: UseJob) -> None:
    from npukit.inference.batch import infer
    from npukit.inference.show import show_inferred
    from npukit.report.progress import progress
    from npukit.report.report import counted

    with progress("answering", "rows") as on_progress:
        done = infer(job.use, on_progress)
    if done is not None:
        show_inferred(done, job.json)
        if done.failed:
            raise NpukitError(
                f"No answer for {done.failed} of {counted(done.rows, 'row')}: `error` in {done.output} says why.",
                on_the_way=True,
            )


def _evaluate(job: UseJob) -> None:
    from npukit.inference.evaluate import evaluate
    from npukit.inference.show import show_evaluated
    from npukit.report.progress import progress

    with progress("evaluating", "rows") as on_progress:
        done = evaluate(job.use, [source.path for source in job.use.data.input], on_progress)
    show_evaluated(done, job.json)


def device_name(device: Any) -> str:
    """The usual name of a device, with "simulated" if it is."""
    from npukit.launch.abilities import abilities
    from npukit.launch.devices import is_simulated

    if not abilities(device).own_memory:
        return "the CPU"
    return f"{'a simulated ' if is_simulated() else ''}{device}"


if __name__ == "__main__":
    main()
