package uverbs

import "fmt"

// EventType is the kind of an asynchronous event (enum ib_event_type).
type EventType uint32

// Events that raw packet queues and their port can have. Others exist for RDMA queues and may be
// ignored.
const (
	// element: CQ user handle. Overrun or failed write: recreate it and all queues on it
	EventCQError     EventType = 0
	EventQPFatal     EventType = 1 // element: QP user handle. Recreate it
	EventQPReqError  EventType = 2 // element: QP user handle
	EventQPAccess    EventType = 3 // element: QP user handle
	EventDeviceFatal EventType = 8 // the device failed or is removed: stop, close, rediscover
	EventPortActive  EventType = 9 // element: port number. The netdev has carrier
	// element: port number. Carrier lost or netdev down; queues stay valid
	EventPortError EventType = 10
	// element: port number. An address of the netdev changed: ignore
	EventGIDChange   EventType = 18
	EventWQFatal     EventType = 19 // element: WQ user handle, 0 on linux 5.4. Reset it
	EventSpeedChange EventType = 20 // element: port number
)

var eventNames = map[EventType]string{
	0: "CQ_ERR", 1: "QP_FATAL", 2: "QP_REQ_ERR", 3: "QP_ACCESS_ERR", 4: "COMM_EST",
	5: "SQ_DRAINED", 6: "PATH_MIG",
	7: "PATH_MIG_ERR", 8: "DEVICE_FATAL", 9: "PORT_ACTIVE", 10: "PORT_ERR",
	11: "LID_CHANGE", 12: "PKEY_CHANGE",
	13: "SM_CHANGE", 14: "SRQ_ERR", 15: "SRQ_LIMIT_REACHED",
	16: "QP_LAST_WQE_REACHED", 17: "CLIENT_REREGISTER",
	18: "GID_CHANGE", 19: "WQ_FATAL", 20: "DEVICE_SPEED_CHANGE",
}

// String returns the kernel's name without its prefix.
func (t EventType) String() string {
	if s, ok := eventNames[t]; ok {
		return s
	}
	return fmt.Sprintf("event %d", uint32(t))
}

// AsyncEvent is one asynchronous event.
type AsyncEvent struct {
	Type    EventType
	Element uint64 // user handle of the object, or port number; see the EventType
}

// String prints the event for a log.
func (e AsyncEvent) String() string { return fmt.Sprintf("%v of %#x", e.Type, e.Element) }

// AsyncEvents holds the stream of asynchronous events of a context.
type AsyncEvents struct{ events *events }

func newAsyncEvents(k Kernel, fd int) (*AsyncEvents, error) {
	e, err := newEvents(k, fd, SizeOf(AsyncEventDesc{}), "asynchronous event descriptor")
	if err != nil {
		return nil, err
	}
	return &AsyncEvents{e}, nil
}

// ReadEvent blocks until there is an event. The error wraps ErrClosed after Context.Close and EIO
// if the device has failed or was removed, after EventDeviceFatal. Each event goes to one of
// several concurrent readers.
func (a *AsyncEvents) ReadEvent() (AsyncEvent, error) {
	a.events.mu.Lock()
	defer a.events.mu.Unlock()
	if _, err := a.events.waitRecords(a.events.one); err != nil {
		return AsyncEvent{}, err
	}
	return decodeAsyncEvent(a.events.buf[:]), nil
}

func decodeAsyncEvent(b []byte) AsyncEvent {
	var d AsyncEventDesc
	GetStruct(b, &d)
	return AsyncEvent{Type: EventType(d.EventType), Element: d.Element}
}
