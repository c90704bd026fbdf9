"""For any training loop: a decorator over the function that returns a step's samples, or one call with them."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from stream_metrics.producers.client import RolloutProducer
from stream_metrics.producers.environment import shared

_Function = TypeVar("_Function", bound=Callable[..., Any])
_log = logging.getLogger(__name__)


def publish_step(
    step: int,
    samples: Iterable[Any],
    *,
    scope: str | None = None,
    to_sample: Callable[[Any], Any] | None = None,
    producer: RolloutProducer | None = None,
) -> None:
    """All samples of a step and its close marker are queued, or it is said why not. Never raises.

    Args:
        step: The step.
        samples: Mappings or objects with the contract's names, all that this process has of the step.
        scope: Prefix of the metrics' keys; None takes the producer's.
        to_sample: Makes such a mapping or object of each item.
        producer: Where to; None takes the process's own, as the environment describes it.
    """
    try:
        producer = producer or shared.get()
        if producer is not None:
            items = samples if to_sample is None else [to_sample(item) for item in samples]
            producer.emit_step(items, step=step, scope=scope)
            producer.close_step(step, scope=scope)
    except Exception:
        _log.exception("step %r could not be sent; training goes on", step)


def publishes_step(
    *,
    step: str = "step",
    scope: str | None = None,
    to_sample: Callable[[Any], Any] | None = None,
    producer: RolloutProducer | None = None,
) -> Callable[[_Function], _Function]:
    """Returns a decorator: what the function returns is a step's samples, and is sent. The function works as before.

        @publishes_step(step="iteration")
        def collect_rollouts(policy, iteration): ...

    Args:
        step: The parameter of the function that is the step.
        scope: As in `publish_step`, and so are the others.
        to_sample: As above.
        producer: As above.

    Raises:
        TypeError: The function has no such parameter.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        if step not in signature.parameters:
            raise TypeError(f"{function!r} has no parameter {step!r} to take the step from")

        def publish(samples: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            bound = signature.bind(*arguments, **keywords)
            bound.apply_defaults()
            if not isinstance(samples, list | tuple):
                # One that can be walked only once must still be whole for the trainer.
                _log.warning("%r returned a %s instead of a list; it isn't sent", function, type(samples).__name__)
                return samples
            publish_step(bound.arguments[step], samples, scope=scope, to_sample=to_sample, producer=producer)
            return samples

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped_async(*arguments: Any, **keywords: Any) -> Any:
                return publish(await function(*arguments, **keywords), arguments, keywords)

            return wrapped_async  # type: ignore[return-value]

        @functools.wraps(function)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            return publish(function(*arguments, **keywords), arguments, keywords)

        return wrapped  # type: ignore[return-value]

    return decorate
