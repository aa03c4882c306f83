# mypy: disable-error-code="type-arg, var-annotated"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ["frequency_hz", "pid", "seconds"]
    FREQUENCY_HZ_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    frequency_hz: int
    pid: int
    seconds: float
    def __init__(self, pid: _Optional[int] = ..., seconds: _Optional[float] = ..., frequency_hz: _Optional[int] = ...) -> None: ...

class Counter(_message.Message):
    __slots__ = ["labels", "value"]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    value: int
    def __init__(self, labels: _Optional[_Iterable[str]] = ..., value: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Error(_message.Message):
    __slots__ = ["code", "message"]
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    BUSY: Error.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    DENIED: Error.Code
    INTERNAL: Error.Code
    MALFORMED: Error.Code
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND: Error.Code
    TARGET: Error.Code
    UNKNOWN: Error.Code
    VERSION: Error.Code
    code: Error.Code
    message: str
    def __init__(self, code: _Optional[_Union[Error.Code, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Function(_message.Message):
    __slots__ = ["idleness_s", "module", "name"]
    IDLENESS_S_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    idleness_s: float
    module: str
    name: str
    def __init__(self, name: _Optional[str] = ..., module: _Optional[str] = ..., idleness_s: _Optional[float] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ["protocol", "version"]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Metrics(_message.Message):
    __slots__ = ["blame_s", "idleness_s", "more", "overhead_s", "profiling_s", "samples", "spin_s", "work_s"]
    BLAME_S_FIELD_NUMBER: _ClassVar[int]
    IDLENESS_S_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_S_FIELD_NUMBER: _ClassVar[int]
    PROFILING_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SPIN_S_FIELD_NUMBER: _ClassVar[int]
    WORK_S_FIELD_NUMBER: _ClassVar[int]
    blame_s: float
    idleness_s: float
    more: _containers.RepeatedCompositeFieldContainer[Value]
    overhead_s: float
    profiling_s: float
    samples: int
    spin_s: float
    work_s: float
    def __init__(self, samples: _Optional[int] = ..., work_s: _Optional[float] = ..., idleness_s: _Optional[float] = ..., overhead_s: _Optional[float] = ..., spin_s: _Optional[float] = ..., blame_s: _Optional[float] = ..., profiling_s: _Optional[float] = ..., more: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ["blocked", "cgroup", "comm", "command", "container", "cores", "cost_ratio", "frequency_hz", "functions", "n_w_source", "n_working", "notes", "pid", "pod", "runtime", "serial", "spinning", "started_time_s", "totals", "uid", "unit", "watched_s", "working"]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    CGROUP_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    COMM_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    COST_RATIO_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_HZ_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    N_WORKING_FIELD_NUMBER: _ClassVar[int]
    N_W_SOURCE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    SPINNING_FIELD_NUMBER: _ClassVar[int]
    STARTED_TIME_S_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    WORKING_FIELD_NUMBER: _ClassVar[int]
    blocked: int
    cgroup: str
    comm: str
    command: str
    container: str
    cores: int
    cost_ratio: float
    frequency_hz: int
    functions: _containers.RepeatedCompositeFieldContainer[Function]
    n_w_source: str
    n_working: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    pid: int
    pod: str
    runtime: str
    serial: bool
    spinning: int
    started_time_s: float
    totals: Metrics
    uid: int
    unit: str
    watched_s: float
    working: int
    def __init__(self, pid: _Optional[int] = ..., comm: _Optional[str] = ..., command: _Optional[str] = ..., uid: _Optional[int] = ..., runtime: _Optional[str] = ..., n_w_source: _Optional[str] = ..., cores: _Optional[int] = ..., n_working: _Optional[int] = ..., working: _Optional[int] = ..., spinning: _Optional[int] = ..., blocked: _Optional[int] = ..., started_time_s: _Optional[float] = ..., cost_ratio: _Optional[float] = ..., frequency_hz: _Optional[int] = ..., cgroup: _Optional[str] = ..., unit: _Optional[str] = ..., container: _Optional[str] = ..., pod: _Optional[str] = ..., totals: _Optional[_Union[Metrics, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., serial: bool = ..., functions: _Optional[_Iterable[_Union[Function, _Mapping]]] = ..., watched_s: _Optional[float] = ...) -> None: ...

class ProcessList(_message.Message):
    __slots__ = ["clock_s", "omitted", "processes", "time_s"]
    CLOCK_S_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    clock_s: float
    omitted: int
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    time_s: float
    def __init__(self, time_s: _Optional[float] = ..., processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ..., omitted: _Optional[int] = ..., clock_s: _Optional[float] = ...) -> None: ...

class ProfileChunk(_message.Message):
    __slots__ = ["data", "last"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    def __init__(self, data: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ["cores", "elapsed_s", "lost", "n_working", "samples"]
    CORES_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    N_WORKING_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    cores: int
    elapsed_s: float
    lost: int
    n_working: int
    samples: int
    def __init__(self, elapsed_s: _Optional[float] = ..., samples: _Optional[int] = ..., n_working: _Optional[int] = ..., cores: _Optional[int] = ..., lost: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ["attach", "finish", "hello", "list", "status", "unwatch", "watch"]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    UNWATCH_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    attach: AttachRequest
    finish: Finish
    hello: Hello
    list: ListRequest
    status: StatusRequest
    unwatch: UnwatchRequest
    watch: WatchRequest
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., status: _Optional[_Union[StatusRequest, _Mapping]] = ..., list: _Optional[_Union[ListRequest, _Mapping]] = ..., attach: _Optional[_Union[AttachRequest, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., watch: _Optional[_Union[WatchRequest, _Mapping]] = ..., unwatch: _Optional[_Union[UnwatchRequest, _Mapping]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ["done", "error", "hello", "list", "profile", "progress", "status"]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    done: Done
    error: Error
    hello: Hello
    list: ProcessList
    profile: ProfileChunk
    progress: Progress
    status: Status
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., status: _Optional[_Union[Status, _Mapping]] = ..., list: _Optional[_Union[ProcessList, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., profile: _Optional[_Union[ProfileChunk, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ["attach_failures", "budget_ratio", "cost_ratio", "drain_s", "dropped", "frequency_hz", "governor_transitions", "lost", "not_ready", "notes", "processes", "protection", "pushed", "samples", "started_time_s", "time_s", "unhealthy", "version", "visible_processes", "watched_s"]
    ATTACH_FAILURES_FIELD_NUMBER: _ClassVar[int]
    BUDGET_RATIO_FIELD_NUMBER: _ClassVar[int]
    COST_RATIO_FIELD_NUMBER: _ClassVar[int]
    DRAIN_S_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_HZ_FIELD_NUMBER: _ClassVar[int]
    GOVERNOR_TRANSITIONS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    PUSHED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STARTED_TIME_S_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    UNHEALTHY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    attach_failures: _containers.RepeatedCompositeFieldContainer[Counter]
    budget_ratio: float
    cost_ratio: float
    drain_s: float
    dropped: _containers.RepeatedCompositeFieldContainer[Counter]
    frequency_hz: int
    governor_transitions: _containers.RepeatedCompositeFieldContainer[Counter]
    lost: _containers.RepeatedCompositeFieldContainer[Counter]
    not_ready: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    processes: int
    protection: _containers.RepeatedScalarFieldContainer[str]
    pushed: _containers.RepeatedCompositeFieldContainer[Counter]
    samples: int
    started_time_s: float
    time_s: float
    unhealthy: str
    version: str
    visible_processes: int
    watched_s: float
    def __init__(self, version: _Optional[str] = ..., time_s: _Optional[float] = ..., started_time_s: _Optional[float] = ..., unhealthy: _Optional[str] = ..., not_ready: _Optional[str] = ..., processes: _Optional[int] = ..., visible_processes: _Optional[int] = ..., frequency_hz: _Optional[int] = ..., samples: _Optional[int] = ..., budget_ratio: _Optional[float] = ..., cost_ratio: _Optional[float] = ..., drain_s: _Optional[float] = ..., lost: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., attach_failures: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., governor_transitions: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., pushed: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., dropped: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., protection: _Optional[_Iterable[str]] = ..., watched_s: _Optional[float] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class UnwatchRequest(_message.Message):
    __slots__ = ["pid"]
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ["name", "value"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ["pid"]
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...
