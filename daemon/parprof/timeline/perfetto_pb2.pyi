# mypy: disable-error-code="type-arg, var-annotated"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClockSnapshot(_message.Message):
    __slots__ = ["clocks", "primary_trace_clock"]
    class Clock(_message.Message):
        __slots__ = ["clock_id", "timestamp"]
        CLOCK_ID_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
        clock_id: int
        timestamp: int
        def __init__(self, clock_id: _Optional[int] = ..., timestamp: _Optional[int] = ...) -> None: ...
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_TRACE_CLOCK_FIELD_NUMBER: _ClassVar[int]
    clocks: _containers.RepeatedCompositeFieldContainer[ClockSnapshot.Clock]
    primary_trace_clock: int
    def __init__(self, clocks: _Optional[_Iterable[_Union[ClockSnapshot.Clock, _Mapping]]] = ..., primary_trace_clock: _Optional[int] = ...) -> None: ...

class CounterDescriptor(_message.Message):
    __slots__ = ["unit_name"]
    UNIT_NAME_FIELD_NUMBER: _ClassVar[int]
    unit_name: str
    def __init__(self, unit_name: _Optional[str] = ...) -> None: ...

class EventName(_message.Message):
    __slots__ = ["iid", "name"]
    IID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    iid: int
    name: str
    def __init__(self, iid: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class InternedData(_message.Message):
    __slots__ = ["event_names"]
    EVENT_NAMES_FIELD_NUMBER: _ClassVar[int]
    event_names: _containers.RepeatedCompositeFieldContainer[EventName]
    def __init__(self, event_names: _Optional[_Iterable[_Union[EventName, _Mapping]]] = ...) -> None: ...

class ProcessDescriptor(_message.Message):
    __slots__ = ["cmdline", "pid", "process_name"]
    CMDLINE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_NAME_FIELD_NUMBER: _ClassVar[int]
    cmdline: _containers.RepeatedScalarFieldContainer[str]
    pid: int
    process_name: str
    def __init__(self, pid: _Optional[int] = ..., cmdline: _Optional[_Iterable[str]] = ..., process_name: _Optional[str] = ...) -> None: ...

class ThreadDescriptor(_message.Message):
    __slots__ = ["pid", "thread_name", "tid"]
    PID_FIELD_NUMBER: _ClassVar[int]
    THREAD_NAME_FIELD_NUMBER: _ClassVar[int]
    TID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    thread_name: str
    tid: int
    def __init__(self, pid: _Optional[int] = ..., tid: _Optional[int] = ..., thread_name: _Optional[str] = ...) -> None: ...

class Trace(_message.Message):
    __slots__ = ["packet"]
    PACKET_FIELD_NUMBER: _ClassVar[int]
    packet: _containers.RepeatedCompositeFieldContainer[TracePacket]
    def __init__(self, packet: _Optional[_Iterable[_Union[TracePacket, _Mapping]]] = ...) -> None: ...

class TracePacket(_message.Message):
    __slots__ = ["clock_snapshot", "interned_data", "sequence_flags", "timestamp", "trace_packet_defaults", "track_descriptor", "track_event", "trusted_packet_sequence_id"]
    CLOCK_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    INTERNED_DATA_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TRACE_PACKET_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    TRACK_DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    TRACK_EVENT_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_PACKET_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    clock_snapshot: ClockSnapshot
    interned_data: InternedData
    sequence_flags: int
    timestamp: int
    trace_packet_defaults: TracePacketDefaults
    track_descriptor: TrackDescriptor
    track_event: TrackEvent
    trusted_packet_sequence_id: int
    def __init__(self, clock_snapshot: _Optional[_Union[ClockSnapshot, _Mapping]] = ..., timestamp: _Optional[int] = ..., trusted_packet_sequence_id: _Optional[int] = ..., track_event: _Optional[_Union[TrackEvent, _Mapping]] = ..., interned_data: _Optional[_Union[InternedData, _Mapping]] = ..., sequence_flags: _Optional[int] = ..., trace_packet_defaults: _Optional[_Union[TracePacketDefaults, _Mapping]] = ..., track_descriptor: _Optional[_Union[TrackDescriptor, _Mapping]] = ...) -> None: ...

class TracePacketDefaults(_message.Message):
    __slots__ = ["timestamp_clock_id"]
    TIMESTAMP_CLOCK_ID_FIELD_NUMBER: _ClassVar[int]
    timestamp_clock_id: int
    def __init__(self, timestamp_clock_id: _Optional[int] = ...) -> None: ...

class TrackDescriptor(_message.Message):
    __slots__ = ["counter", "name", "parent_uuid", "process", "thread", "uuid"]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARENT_UUID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    counter: CounterDescriptor
    name: str
    parent_uuid: int
    process: ProcessDescriptor
    thread: ThreadDescriptor
    uuid: int
    def __init__(self, uuid: _Optional[int] = ..., name: _Optional[str] = ..., process: _Optional[_Union[ProcessDescriptor, _Mapping]] = ..., thread: _Optional[_Union[ThreadDescriptor, _Mapping]] = ..., parent_uuid: _Optional[int] = ..., counter: _Optional[_Union[CounterDescriptor, _Mapping]] = ...) -> None: ...

class TrackEvent(_message.Message):
    __slots__ = ["counter_value", "name_iid", "track_uuid", "type"]
    class Type(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    COUNTER_VALUE_FIELD_NUMBER: _ClassVar[int]
    NAME_IID_FIELD_NUMBER: _ClassVar[int]
    TRACK_UUID_FIELD_NUMBER: _ClassVar[int]
    TYPE_COUNTER: TrackEvent.Type
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TYPE_INSTANT: TrackEvent.Type
    TYPE_SLICE_BEGIN: TrackEvent.Type
    TYPE_SLICE_END: TrackEvent.Type
    TYPE_UNSPECIFIED: TrackEvent.Type
    counter_value: int
    name_iid: int
    track_uuid: int
    type: TrackEvent.Type
    def __init__(self, type: _Optional[_Union[TrackEvent.Type, str]] = ..., name_iid: _Optional[int] = ..., track_uuid: _Optional[int] = ..., counter_value: _Optional[int] = ...) -> None: ...
