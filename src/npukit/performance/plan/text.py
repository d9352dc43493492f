"""Plans as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

from npukit.facts.planning import Range
from npukit.llm.config.schema import plain
from npukit.llm.tasks import task as tasks
from npukit.performance.plan.fit import Fit
from npukit.performance.plan.job import Plan, Walk
from npukit.performance.plan.memory import GIB
from npukit.performance.plan.serving import ServingPlan
from npukit.performance.plan.table import PlanRow
from npukit.performance.plan.work import StepTime
from npukit.report.language import translated
from npukit.report.report import counted
from npukit.report.terminal import printable_line

PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations, if every row has the maximum length",
    "logits": "logits, computed in chunks",
    "communication": "buffers for communication",
    "update": "more while the optimizer updates the weights",
    "sampling": "more during generation, at least",
    "outside": "outside of torch's allocator: HCCL, runtime, logs",
}


PHASES = {
    "sampling": "of it generation, if every answer has the maximum length",
    "rewards": "of it reward models; reward functions are not counted",
    "learning": "of it training",
}
DAY = 86_400  # seconds
SMALLEST = 2**20  # bytes that are shown
MODULES = 4  # those with the largest activations that are shown
ROLES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states and what the update needs",
    "activations": "activations and logits",
    "backward": "gradients of activations",
    "communication": "buffers for communication, gathered weights",
    "other": "batches and everything else",
    "inside operators": "inside of operators",
    "fragmentation": "fragmentation of the allocator",
    "outside": PARTS["outside"],
}


def dry_run(plan: Plan) -> str:
    """The configuration as YAML that can be run again, then figures as comments."""
    import yaml

    lines = [yaml.safe_dump(plan.config, sort_keys=False, allow_unicode=True, width=100).rstrip(), ""]
    return "\n".join(lines + [f"# {translated(line)}" for line in (*_size(plan), _steps(plan), *_images(plan))])


def as_text(plan: Plan) -> str:
    """The plan, for a terminal."""
    lines = [*_size(plan)]
    time = (plan.walk and plan.walk.time) or plan.time
    if plan.walk:
        lines += ["", *walk_lines(plan.walk, plan.card)]
    elif plan.usable is not None and plan.memory is not None:
        lines.append(verdict(plan.memory.total, plan.usable, plan.card))
    if plan.fits is False:
        lines.append("`npukit plan --fit` with the same words finds the change that costs least")
    lines += ["", _steps(plan), *_images(plan)]
    if time:
        lines += time_lines(time, plan.tokens_per_step / plan.devices)
        lines += [f"  {seconds(span):>18}  {PHASES[name]}" for name, span in (plan.phases or {}).items() if span[1]]
        if plan.days:
            steps = f"all {plan.steps:,} steps" if plan.steps != 1 else "the one step"
            lines.append(f"{steps}: {duration(plan.days)}")
    elif plan.memory and plan.card:
        lines.append(f"time unknown: npukit has no figures for the speed of a {plan.card} or of its links")
    return "\n".join(lines)


def serving_text(plan: ServingPlan) -> str:
    """The plan of serving, for a terminal."""
    lines = [
        f"{plan.parameters:,} parameters",
        f"about {size(plan.total).strip()} on the device:",
        f"  {size(plan.weights)}  {PARTS['weights']}",
        f"  {size(plan.cache)}  key/value cache of {plan.cached_tokens:,} tokens, {plan.cached_token:,} bytes each",
    ]
    if plan.states:
        lines.append(f"  {size(plan.states)}  states of {plan.max_num_seqs:,} sequences")
    if not plan.fits:
        return "\n".join([*lines, f"does not fit: no sequence of {plan.max_model_len:,} tokens has room in the cache"])
    room = f"{counted(plan.full_length, 'sequence')} of {plan.max_model_len:,} tokens"
    lines.append(f"the cache has room for {room} at the same time, or for up to {plan.max_num_seqs:,} shorter ones")
    return "\n".join([*lines, verdict(plan.total, plan.usable, plan.card)])


KINDS = {
    "same training": "It does not fit as configured. It fits with",
    "only an adapter": "All weights cannot be trained on these cards. It fits if only an adapter is trained, with",
    "shorter rows": "It does not fit with rows of this length. It fits with",
    "more cards": "It does not fit on these cards. It fits with",
}


def fit_text(fit: Fit, devices: int) -> str:
    """The changes as words for the command line, then the plan with them."""
    cards = [f"--devices {fit.devices}"] if fit.devices != devices else []
    changes = [f"{key}={plain(value)}" for key, value in fit.changes.items()]
    return "\n".join([f"{KINDS[fit.kind]}:", f"  {' '.join([*cards, *changes])}", "", as_text(fit.plan)])


def table_text(rows: Iterable[PlanRow], card: str) -> str:
    """For a terminal."""
    lines = [f"{'tuning':8}{'cards':>6}  {'parallel':10}{'GiB per card':>14}  {f'fits a {card}':16}tokens/s in all"]
    for row in rows:
        speed = "{:,.0f} to {:,.0f}".format(*row.tokens_per_second) if row.tokens_per_second else "unknown"
        parallel = "" if row.cards == 1 else row.parallel
        fits = "yes" if row.fits else "no"
        lines.append(f"{row.method:8}{row.cards:>6}  {parallel:10}{row.bytes / GIB:>14.1f}  {fits:16}{speed}")
    return "\n".join(lines)


def _size(plan: Plan) -> Iterator[str]:
    if not plan.memory or not plan.parameters or plan.trained is None:
        yield "memory unknown: the model is not in a local folder, or belongs to a family that npukit does not know"
        return
    share = 100 * plan.trained / plan.parameters
    yield f"{plan.parameters:,} parameters, {plan.trained:,} of them trained ({share:.2f}%)"
    where = "the device" if plan.devices == 1 else f"each of {plan.devices} devices"
    yield f"about {size(plan.memory.total).strip()} on {where}:"
    yield from (f"  {size(count)}  {PARTS[name]}" for name, count in asdict(plan.memory).items() if count)


def verdict(needed: float, usable: float, card: str) -> str:
    """Whether it fits, and by how much."""
    there = f"a {card} has {size(usable).strip()} for programs"
    if needed > usable:
        return f"does not fit: {there}, {size(needed - usable).strip()} too little"
    return f"fits: {there}, {size(usable - needed).strip()} to spare"


def walk_lines(walk: Walk, card: str) -> Iterator[str]:
    """The use of memory at the peak, and whether it fits."""
    yield f"walked through two steps on a simulated card: {size(walk.total).strip()} on each device"
    roles: dict[str, int] = {}
    for held in walk.held:
        roles[held.role] = roles.get(held.role, 0) + held.bytes
    roles |= {"fragmentation": walk.reserved - walk.peak, "outside": walk.outside}
    for role, count in roles.items():
        if count >= SMALLEST:
            yield f"  {size(count)}  {ROLES[role]}"
        if role == "activations":
            inside = [held for held in walk.held if held.role == role and held.bytes >= SMALLEST]
            yield from (f"    {size(held.bytes)}  in {printable_line(held.module)}" for held in inside[:MODULES])
    yield verdict(walk.total, walk.usable, card)


def time_lines(time: StepTime, tokens: float | None = None) -> Iterator[str]:
    """The time of a step and its parts."""
    speed = ""
    if tokens:
        low, high = time.tokens_per_second(tokens)
        speed = f", which is {low:,.0f} to {high:,.0f} tokens/s on each device"
    yield f"a step takes {seconds(time.step)}{speed}:"
    parts = {
        "matrix products and attention": time.compute,
        "operators bound by memory": time.memory,
        "the host issuing operators, at the same time": time.host,
        "collectives, partly at the same time": time.collectives,
    }
    yield from (f"  {seconds(part):>18}  {name}" for name, part in parts.items() if part[1])


def seconds(span: Range) -> str:
    """
    >>> seconds((0.2, 0.51))
    '0.20 to 0.51 s'
    """
    if span[1] < 0.1:
        return f"{span[0] * 1e3:.1f} to {span[1] * 1e3:.1f} ms"
    return f"{span[0]:.2f} to {span[1]:.2f} s"


def duration(days: Range) -> str:
    """
    >>> duration((0.5, 0.75))
    '12.0 to 18.0 hours'
    """
    if days[1] >= 2:
        return f"{days[0]:.1f} to {days[1]:.1f} days"
    if days[1] * 24 >= 1:
        return f"{days[0] * 24:.1f} to {days[1] * 24:.1f} hours"
    if days[1] * 1440 >= 1:
        return f"{days[0] * 1440:.1f} to {days[1] * 1440:.1f} minutes"
    return seconds((days[0] * DAY, days[1] * DAY))


def size(count: float) -> str:
    """
    >>> size(3 * 2**30)
    '   3.0 GiB'
    """
    return f"{count / GIB:6.1f} GiB" if count >= GIB else f"{count / 2**20:6.1f} MiB"


def _steps(plan: Plan) -> str:
    if plan.steps is None:
        return "number of steps unknown: the data is not in local files"
    steps = counted(plan.steps, "step")
    per_step = f"up to {plan.tokens_per_step:,} tokens each"
    if plan.rows is None:
        return f"{steps}, {per_step}"
    about = "" if plan.rows_are_exact else "about "
    packed = plan.config["data"]["packing"] and tasks.named(plan.config["task"]).packs
    into = f", packed into about {plan.batches_per_epoch:,}" if packed else ""
    return f"{about if not packed else 'about '}{steps}, {per_step}; {about}{counted(plan.rows, 'row')}{into}"


def _images(plan: Plan) -> Iterator[str]:
    if plan.image_tokens:
        yield f"images take about {plan.image_tokens:,.0f} tokens of a row"
