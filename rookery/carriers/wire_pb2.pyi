from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Packet(_message.Message):
    __slots__ = ("version", "frames")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    version: int
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    def __init__(self, version: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("relay", "arrays")
    RELAY_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    relay: int
    arrays: _containers.RepeatedCompositeFieldContainer[Array]
    def __init__(self, relay: _Optional[int] = ..., arrays: _Optional[_Iterable[_Union[Array, _Mapping]]] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("name", "dtype", "shape", "codec", "num_bytes")
    class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NONE: _ClassVar[Array.Codec]
        LZ4: _ClassVar[Array.Codec]
    NONE: Array.Codec
    LZ4: Array.Codec
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    codec: Array.Codec
    num_bytes: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., codec: _Optional[_Union[Array.Codec, str]] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("version", "rookery_version", "host", "pid", "num_actors", "cores", "run", "identity", "role")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOKERY_VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    NUM_ACTORS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    version: int
    rookery_version: str
    host: str
    pid: int
    num_actors: int
    cores: int
    run: str
    identity: str
    role: str
    def __init__(self, version: _Optional[int] = ..., rookery_version: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., num_actors: _Optional[int] = ..., cores: _Optional[int] = ..., run: _Optional[str] = ..., identity: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("version", "session", "places", "config", "signature", "start_steps", "run", "lease_secs", "parts", "role", "probe")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    START_STEPS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    version: int
    session: str
    places: _containers.RepeatedCompositeFieldContainer[Place]
    config: str
    signature: str
    start_steps: int
    run: str
    lease_secs: float
    parts: bytes
    role: str
    probe: Probe
    def __init__(self, version: _Optional[int] = ..., session: _Optional[str] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., config: _Optional[str] = ..., signature: _Optional[str] = ..., start_steps: _Optional[int] = ..., run: _Optional[str] = ..., lease_secs: _Optional[float] = ..., parts: _Optional[bytes] = ..., role: _Optional[str] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("directory", "name", "content")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    directory: str
    name: str
    content: str
    def __init__(self, directory: _Optional[str] = ..., name: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("place", "life")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    place: int
    life: int
    def __init__(self, place: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("version", "session", "actors_alive", "restarts", "message", "error")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ACTORS_ALIVE_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    version: int
    session: str
    actors_alive: int
    restarts: int
    message: str
    error: str
    def __init__(self, version: _Optional[int] = ..., session: _Optional[str] = ..., actors_alive: _Optional[int] = ..., restarts: _Optional[int] = ..., message: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("version", "state", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        RUN: _ClassVar[Orders.State]
        WAIT: _ClassVar[Orders.State]
        STOP: _ClassVar[Orders.State]
        OVER: _ClassVar[Orders.State]
    RUN: Orders.State
    WAIT: Orders.State
    STOP: Orders.State
    OVER: Orders.State
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    version: int
    state: Orders.State
    reason: str
    def __init__(self, version: _Optional[int] = ..., state: _Optional[_Union[Orders.State, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("version", "session", "reason")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    version: int
    session: str
    reason: str
    def __init__(self, version: _Optional[int] = ..., session: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...
