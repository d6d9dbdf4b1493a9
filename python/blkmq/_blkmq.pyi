from collections.abc import Callable
from os import PathLike
from typing import final

__version__: str

class Error(RuntimeError): ...
class UsageError(ValueError): ...

@final
class Request:
    """A request that the engine has given to a scheduler. Its fields change when others are merged into it."""

    @property
    def op(self) -> str:
        """``read``, ``write``, ``discard`` or ``write_zeroes``."""
    @property
    def is_write(self) -> bool:
        """Anything but a read."""
    @property
    def sector(self) -> int:
        """The first sector of 512 bytes."""
    @property
    def sectors(self) -> int:
        """The length in sectors."""
    @property
    def sync(self) -> bool:
        """A submitter waits for it."""
    @property
    def owner(self) -> int:
        """The submitter that it is accounted to."""
    @property
    def group(self) -> int:
        """The group of that submitter; 0 is the root."""
    @property
    def arrived(self) -> int:
        """The time of its arrival in nanoseconds."""
    @property
    def prio_class(self) -> str:
        """``none``, ``realtime``, ``best-effort`` or ``idle``."""
    @property
    def prio_level(self) -> int:
        """The level within the class, 0 to 7; 0 is the most urgent."""

@final
class Study:
    def __new__(cls, text: str, json: bool = True) -> Study: ...
    def __len__(self) -> int: ...
    def json(self) -> str: ...
    def ids(self, first: int, end: int) -> list[str]: ...
    def run(self, points: list[int]) -> list[str]: ...
    def finish(self, rows: list[str], folder: str | PathLike[str] | None = None) -> str: ...

@final
class Folder:
    @staticmethod
    def open(folder: str | PathLike[str], study: Study) -> tuple[Folder, list[str]]: ...
    def add(self, rows: list[str]) -> None: ...
    def close(self) -> None: ...

def run(words: list[str], real: bool = False, policy: Callable[[], object] | None = None) -> str: ...
def replay(words: list[str]) -> str: ...
def trace_info(words: list[str]) -> str: ...
def devices() -> list[str]: ...
def schedulers() -> list[tuple[str, list[tuple[str, int, int, int, str]]]]: ...
def end_with_parent() -> None: ...
def reads_first(words: list[str]) -> str: ...
