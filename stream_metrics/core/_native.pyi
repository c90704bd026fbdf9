from stream_metrics.core.compiled import FindLane
from stream_metrics.events import Identifier

class Reader:
    def forget(self) -> None: ...
    def read(
        self, values: list[bytes | None], begin: int, find: FindLane
    ) -> tuple[int, int, bytes, int, bytes, list[Identifier | None] | None, list[tuple[int, int]]]: ...
