"""Feature-value detection: find the jumps in gradients that faulty hardware makes.

Two figures of every gradient of two or more dimensions are followed, from the first step, on one card or many:
- its largest magnitude, against the mean of its last steps; what all gradients do together (an odd batch) is
  taken out, and has to be a jump by itself to count;
- how far its largest element stands out, from the rest of its row and from all other rows: one that a flipped bit
  made large stands alone in both, in any step, while those of real gradients have neighbours of their size.
Figures stay on the device; `read` fetches them, on logging steps.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.precision.recording.tensors import local

_STEPS = 8  # how far back "usual" reaches
_ALONE = 4.0  # how many times as far as usual an element may stand out from the next; real gradients reach 2
# What is remembered of a jump, as a logarithm: the next one is still found, and what stays is usual after some steps.
_LEARNED_MAGNITUDE, _LEARNED_ALONE = 4.0, 0.5
_NEVER = -math.inf


class FeatureDetector:
    """Watches the gradients of a model as each rank computes them, before they are summed over ranks.

    `dtype` is what the forward is computed in: with float16, Inf is what the gradient scaler is for, and no anomaly.
    `jump` is how far above the mean of recent steps a gradient's maximum may be; with `stop`, `read` raises what it
    found; one that is not enabled costs nothing.

    >>> detector = FeatureDetector(model, torch.bfloat16)
    >>> loss.backward()
    >>> detector.check(step, scale=1.0)  # before gradients are clipped
    >>> if step % 10 == 0:
    ...     for sentence in detector.read():
    ...         print(sentence)
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        rank: int = 0,
        jump: float = 40.0,
        stop: bool = False,
        enable: bool = True,
    ) -> None:
        self._jump, self._stop, self._rank = math.log2(jump), stop, rank
        self._inf_is_usual = dtype == torch.float16
        self._names: list[str] = []
        self._weights: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            shape = getattr(weight, "ds_shape", weight.shape)  # ZeRO-3 keeps the weight itself elsewhere
            if enable and weight.requires_grad and len(shape) >= 2:
                weight.register_hook(partial(self._saw, len(self._names)))  # type: ignore[no-untyped-call]
                self._names.append(name)
                self._weights.append(weight)
        self._seen: list[tuple[int, Tensor, Tensor]] = []  # weight, largest of each row, the row of the largest
        self._order: tuple[tuple[tuple[int, int, int], ...], Tensor] | None = None
        self._past = torch.empty(0)  # _STEPS x 2 x weights, logarithms
        self._count = 0
        self._found: list[tuple[int, Tensor]] = []

    def _saw(self, number: int, gradient: Tensor) -> None:
        if gradient.is_sparse or not gradient.numel():
            return
        matrix = gradient.detach().flatten(1)
        rows = torch.linalg.vector_norm(matrix, math.inf, dim=1)
        strongest = matrix.index_select(0, rows.argmax()[None])[0].abs()
        self._seen.append((number, rows, strongest))

    @torch.no_grad()
    def check(self, step: int, scale: Tensor | float = 1.0) -> None:
        """Judge the gradients of a step; `scale` is what the gradient scaler multiplied them with."""
        if not self._names:
            return
        self._take_sharded()
        if not self._seen:
            return
        now = self._figures(scale)
        self._seen.clear()
        if not self._count:
            self._past = torch.full((_STEPS, *now.shape), _NEVER, device=now.device)
        elif self._count == 1:  # the first step has no past: it is judged by the second
            self._past[0] = self._judge(step - 1, self._past[0], now)
        usual = torch.stack([_mean(self._past[:, 0]), self._past[:, 1].amax(0)])
        self._past[self._count % _STEPS] = self._judge(step, now, usual)
        self._count += 1

    def read(self) -> list[str]:
        """What was found since the last read, one sentence for each step; the only wait for the device.

        With `stop`, what was found is raised instead.
        """
        if not self._found:
            return []
        table = torch.stack([figures for _, figures in self._found]).tolist()
        steps = (step for step, _ in self._found)
        sentences = [self._sentence(step, *row) for step, row in zip(steps, table, strict=True) if row[0] > 0]
        self._found.clear()
        if sentences and self._stop:
            raise NpukitError("\n".join(sentences))
        return sentences

    def _take_sharded(self) -> None:
        """Gradients that no hook sees, because what is computed with is a gathered copy: their own shard."""
        seen = {number for number, _, _ in self._seen}
        for number, weight in enumerate(self._weights):
            if number not in seen and weight.grad is not None:
                self._saw(number, local(weight.grad))

    def _figures(self, scale: Tensor | float) -> Tensor:
        """Logarithms of the largest magnitude and of how far it stands alone, 2 x weights; never where none came."""
        groups: dict[int, list[tuple[int, Tensor]]] = {}
        for position, (_, rows, strongest) in enumerate(self._seen):
            for side, vector in enumerate((rows, strongest)):
                vector = vector.expand(2) if len(vector) == 1 else vector
                groups.setdefault(len(vector), []).append((2 * position + side, vector))
        largest_two = [torch.stack([vector for _, vector in group]).float().topk(2).values for group in groups.values()]
        nothing = torch.zeros(1, 2, device=largest_two[0].device)
        places = [place for group in groups.values() for place, _ in group]
        table = torch.cat([*largest_two, nothing])[self._positions(places, table_end=len(places), like=nothing)]
        largest, next_largest = table.unbind(-1)  # each: backward passes x weights x (rows, row)
        # Nothing but 0 beside it says nothing: then the other direction counts, and of a single element neither.
        alone = torch.where(next_largest > 0, largest / next_largest, math.inf).amin(-1)
        alone = torch.where(torch.isposinf(alone), 1.0, alone)
        magnitude = largest.amax(-1) / scale
        return torch.stack([magnitude.amax(0), alone.amax(0)]).log2()

    def _positions(self, places: list[int], table_end: int, like: Tensor) -> Tensor:
        """Where in the table both vectors of each backward pass and weight are; the end where there is none."""
        key = tuple((number, len(rows), len(strongest)) for number, rows, strongest in self._seen)
        if self._order and self._order[0] == key:
            return self._order[1]
        where = {place: position for position, place in enumerate(places)}
        passes: dict[int, list[tuple[int, int]]] = {}
        for position, (number, _, _) in enumerate(self._seen):
            passes.setdefault(number, []).append((where[2 * position], where[2 * position + 1]))
        most = max(map(len, passes.values()))
        ends = (table_end, table_end)
        order = [
            [(passes.get(number, []) + [ends] * most)[turn] for number in range(len(self._names))]
            for turn in range(most)
        ]
        self._order = key, torch.tensor(order, device=like.device)
        return self._order[1]

    def _judge(self, step: int, now: Tensor, usual: Tensor) -> Tensor:
        """Note what is worst in a step; returns what is to be remembered of it, jumps cut down."""
        jump, alone = self._jump, math.log2(_ALONE)
        known = torch.isfinite(now) & torch.isfinite(usual)
        rise = torch.where(known, now - usual, _NEVER)
        together = _middle(rise[0], known[0]).clamp(min=0)
        excess = torch.stack([rise[0] - together - jump, rise[1] - alone, rise[0].minimum(together) - jump])
        if not self._inf_is_usual:
            broken = torch.isnan(now[0]) | torch.isposinf(now[0])
            excess = torch.cat([excess, torch.where(broken, 1e9, _NEVER)[None]])
        worst, kind = excess.max(0)
        score, number = worst.max(0)
        figures = [score, kind[number], number, now[0, number], usual[0, number], now[1, number], usual[1, number]]
        self._found.append((step, torch.stack([figure.float() for figure in figures])))
        learned = torch.stack([usual[0] + _LEARNED_MAGNITUDE, usual[1] + _LEARNED_ALONE])
        remembered = torch.where(worst > 0, now.minimum(learned), now)
        return torch.where(torch.isfinite(now), remembered, _NEVER)

    def _sentence(self, step: int, score: float, kind: float, number: float, *figures: float) -> str:
        value, usual, alone, usually_alone = (2**figure if math.isfinite(figure) else figure for figure in figures)
        whose = f"the gradient of {self._names[int(number)]}"
        usually = f"usually {usual:.2g}" if math.isfinite(usual) else "with nothing to compare it to"
        what = (
            f"{whose} reached {value:.2g}, {usually}, while the others did not",
            f"one element of {whose} is {value:.2g} ({usually}), {alone:.0f} times the next largest "
            f"(usually {usually_alone:.1f})",
            f"all gradients rose together; {whose} reached {value:.2g}, {usually}",
            f"{whose} holds NaN or Inf, {usually}",
        )[int(kind)]
        return (
            f"Feature detection, step {step}, rank {self._rank}: {what}. Faulty hardware causes this; "
            "unusual data rarely does."
        )


def _mean(past: Tensor) -> Tensor:
    """The mean of what there is of each column; never where there is nothing."""
    there = torch.isfinite(past)
    count = there.sum(0)
    return torch.where(count > 0, torch.where(there, past, 0.0).sum(0) / count, _NEVER)


def _middle(values: Tensor, known: Tensor) -> Tensor:
    """The median of the known values, without waiting for the device; 0 where there are none."""
    count = known.sum()
    ordered = torch.where(known, values, _NEVER).sort().values
    middle = ordered.gather(0, (len(values) - 1 - count // 2).clamp(max=len(values) - 1)[None])[0]
    return torch.where(count > 0, middle, 0.0)
