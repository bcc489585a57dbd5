package simnic

import (
	"maps"
	"slices"
)

// EventType says what happened.
type EventType uint8

// Asynchronous events.
const (
	EventCQError     EventType = iota + 1 // completion queue overrun or write failure
	EventSQFatal                          // send queue went to error without a WQE to blame
	EventRQFatal                          // receive queue went to error
	EventPortUp                           // link came up
	EventPortDown                         // link went down
	EventDeviceFatal                      // device stopped for good
)

// Event is an asynchronous event. The object it is about is set, the others nil.
type Event struct {
	Type EventType
	CQ   *CQ
	SQ   *SQ
	RQ   *RQ
	Port uint8 // port events: 1
}

// Subscribe calls sink with port and device events until cancel is called. The sink must only take
// note of the event: it may run with a queue's lock held and must not call the NIC. Who has
// subscribed first is told first. Events of queues go to the sink in their attributes.
func (n *NIC) Subscribe(sink func(Event)) (cancel func()) {
	n.sinkMu.Lock()
	defer n.sinkMu.Unlock()
	id := n.nextID
	n.nextID++
	n.sinks[id] = sink
	return func() {
		n.sinkMu.Lock()
		defer n.sinkMu.Unlock()
		delete(n.sinks, id)
	}
}

func (n *NIC) emitEvent(e Event) {
	n.sinkMu.Lock()
	defer n.sinkMu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(n.sinks)) {
		n.sinks[id](e)
	}
}
