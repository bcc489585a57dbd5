package kernel

import (
	"slices"
	"sync"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// eventSet holds the event descriptors of one open file. Only locks of descriptors are taken inside
// its lock: events come while queues are locked.
type eventSet struct {
	mu       sync.Mutex
	async    []*eventFile // objects report to the first
	channels []*eventFile
	cancel   func() // cancels the subscription to the port's and the device's events
	ended    bool
}

// subscribeAll subscribes to events of the port and the device.
func (s *eventSet) subscribeAll(n *simnic.NIC) {
	cancel := n.Subscribe(s.passDeviceEvent)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = cancel
}

func (s *eventSet) addAsync(e *eventFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.async = append(s.async, e)
}

func (s *eventSet) addChannel(e *eventFile) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.channels = append(slices.DeleteFunc(s.channels, (*eventFile).abandoned), e)
}

// asyncFile returns the descriptor to which an object created now reports, nil if there is none
// yet.
func (s *eventSet) asyncFile() *eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.async) == 0 {
		return nil
	}
	return s.async[0]
}

// channelOf finds the completion channel of the client's descriptor.
func (s *eventSet) channelOf(fd int) *eventFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.channels {
		if e.hasFD(fd) {
			return e
		}
	}
	return nil
}

// passDeviceEvent passes on events of the port and the device. A fatal one is the last: the kernel
// then removes the device, and the descriptors read end of file.
func (s *eventSet) passDeviceEvent(ev simnic.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.async {
		switch ev.Type {
		case simnic.EventPortUp:
			e.postAsync(uverbs.EventPortActive, uint64(ev.Port))
		case simnic.EventPortDown:
			e.postAsync(uverbs.EventPortError, uint64(ev.Port))
		case simnic.EventDeviceFatal:
			e.postAsync(uverbs.EventDeviceFatal, 0)
		}
	}
	if ev.Type == simnic.EventDeviceFatal {
		s.endFiles()
	}
}

func (s *eventSet) endFiles() {
	if s.ended {
		return
	}
	s.ended = true
	for _, e := range append(s.async, s.channels...) {
		e.closeOurEnd()
	}
}

// closeAll ends the subscription and all descriptors.
func (s *eventSet) closeAll() {
	s.mu.Lock()
	cancel := s.cancel
	s.cancel = nil
	s.endFiles()
	s.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}
