"""Feature-value detection: find the spikes in gradients that faulty hardware causes.

For each gradient with two or more dimensions, two figures are tracked from the first step, on one card or many:
- its largest magnitude relative to the mean of recent steps. What all gradients have in common, such as an unusual
  batch, is divided out, and must be a jump in its own right to count;
- how far its largest element stands out from the rest of its row and from all other rows. An element that a flipped bit
  made large stands out in both directions at any step, while large elements of real gradients have neighbours of
  similar size.
The figures stay on the device until `read` fetches them on logging steps.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.precision.recording.tensors import local

_STEPS = 8  # steps in the moving average
_ALONE = 4.0  # how many times further than usual an element may stand out; real gradients reach 2
# Jumps are remembered as at most this much (a logarithm): the next is still found, and a lasting one becomes usual.
_LEARNED_MAGNITUDE, _LEARNED_ALONE = 4.0, 0.5
_NEVER = -math.inf


class FeatureDetector:
    """Watches the gradients of a model as each rank computes them, before they are summed over ranks.

    `dtype` is what the forward pass is computed in: with float16, Inf is normal because the gradient scaler handles it.
    `jump` is how far a gradient's maximum may exceed the mean of recent steps. With `stop`, `read` raises what it
    found. A disabled detector costs nothing.

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
        self._seen: list[tuple[int, Tensor, Tensor]] = []  # weight, maximum of each row, row of the largest
        self._order: tuple[tuple[tuple[int, int, int], ...], Tensor] | None = None
        self._past = torch.empty(0)  # logarithms, _STEPS x 2 x weights
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
        """Judge the gradients of a step. `scale` is the factor that the gradient scaler applied to them."""
        if not self._names:
            return
        self._take_sharded()
        if not self._seen:
            return
        now = self._figures(scale)
        self._seen.clear()
        if not self._count:
            self._past = torch.full((_STEPS, *now.shape), _NEVER, device=now.device)
        elif self._count == 1:  # the first step has no history: it is judged together with the second
            self._past[0] = self._judge(step - 1, self._past[0], now)
        usual = torch.stack([_mean(self._past[:, 0]), self._past[:, 1].amax(0)])
        self._past[self._count % _STEPS] = self._judge(step, now, usual)
        self._count += 1

    def read(self) -> list[str]:
        """Return what was found since the last read, one sentence per step. Only this waits for the device.

        With `stop`, it raises the finding instead.
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
        """Process gradients that hooks do not see because computation uses a gathered copy: take their own shard."""
        seen = {number for number, _, _ in self._seen}
        for number, weight in enumerate(self._weights):
            if number not in seen and weight.grad is not None:
                self._saw(number, local(weight.grad))

    def _figures(self, scale: Tensor | float) -> Tensor:
        """Logarithms of the largest magnitude and of how far it stands out, 2 x weights; -inf without a gradient."""
        groups: dict[int, list[tuple[int, Tensor]]] = {}
        for position, (_, rows, strongest) in enumerate(self._seen):
            for side, vector in enumerate((rows, strongest)):
                vector = vector.expand(2) if len(vector) == 1 else vector
                groups.setdefault(len(vector), []).append((2 * position + side, vector))
        largest_two = [torch.stack([vector for _, vector in group]).float().topk(2).values for group in groups.values()]
        nothing = torch.zeros(1, 2, device=largest_two[0].device)
        places = [place for group in groups.values() for place, _ in group]
        table = torch.cat([*largest_two, nothing])[self._positions(places, table_end=len(places), like=nothing)]
        largest, next_largest = table.unbind(-1)  # per backward pass: weights x (rows, row)
        # A neighbourhood of zeros says nothing, so the other direction counts; a single element has neither.
        alone = torch.where(next_largest > 0, largest / next_largest, math.inf).amin(-1)
        alone = torch.where(torch.isposinf(alone), 1.0, alone)
        magnitude = largest.amax(-1) / scale
        return torch.stack([magnitude.amax(0), alone.amax(0)]).log2()

    def _positions(self, places: list[int], table_end: int, like: Tensor) -> Tensor:
        """Where the vectors of each backward pass and weight are in the table; its end if there is none."""
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
        """Record the worst finding of a step and return its figures for the history, with jumps capped."""
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
    """The mean of the known values of each column; -inf if there are none."""
    there = torch.isfinite(past)
    count = there.sum(0)
    return torch.where(count > 0, torch.where(there, past, 0.0).sum(0) / count, _NEVER)


def _middle(values: Tensor, known: Tensor) -> Tensor:
    """The median of the known values without waiting for the device; 0 if there are none."""
    count = known.sum()
    ordered = torch.where(known, values, _NEVER).sort().values
    middle = ordered.gather(0, (len(values) - 1 - count // 2).clamp(max=len(values) - 1)[None])[0]
    return torch.where(count > 0, middle, 0.0)
