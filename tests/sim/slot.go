package sim

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

// slot is where a host's card is: cards may leave it and come back, or others in their place.
type slot struct {
	mu      sync.Mutex // covers what follows
	nic     *simnic.NIC
	linux   *kernel.Linux
	away    bool // no device node is there
	refused int  // so many times more nothing may be locked in memory
	// frames that cards before this one have sent and got
	sent, got uint64
}

// noMemory is a limit that no driver can work with.
const noMemory = 64 << 10

// insert puts a new card in, connected to the host's port.
func (h *ourHost) insert(card string) error {
	cfg := simnic.Config{Name: fmt.Sprint("mlx5_", h.index), MTU: h.mtu, Card: card, Seed: h.seed,
		Clock: clock.New(h.clock)}
	if h.kernel != nil {
		cfg.MAC = h.kernel.hardware()
	}
	nic, err := simnic.New(cfg)
	if err != nil {
		return err
	}
	if h.kernel != nil {
		err = h.plugBeside(nic)
	} else {
		err = nic.ConnectWire(cable{h.port})
	}
	if err != nil {
		return err
	}
	h.slot.put(nic)
	return nil
}

func (s *slot) put(nic *simnic.NIC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nic, s.linux = nic, kernel.New(nic, kernel.Config{EventQueues: true})
}

// card is the card that is in, or was last; nil: none yet.
func (s *slot) card() *simnic.NIC {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nic
}

// past is how many frames cards before this one have sent and got.
func (s *slot) past() (sent, got uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent, s.got
}

// open opens the device node.
func (s *slot) open() (uverbs.Kernel, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.away:
		return nil, unix.ENODEV
	case s.refused > 0:
		s.refused--
		return kernel.New(s.nic, kernel.Config{EventQueues: true, Memlock: noMemory}).OpenNode()
	}
	return s.linux.OpenNode()
}

// refuse has the next n drivers find that they may not lock memory.
func (s *slot) refuse(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = n
}

// remove takes the device away under the driver.
func (s *slot) remove() {
	s.mu.Lock()
	s.away = true
	nic := s.nic
	s.mu.Unlock()
	nic.FailDevice()
}

// empty reports what the driver of a device that is away has left of it.
func (s *slot) empty() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.nic.Objects(); o != (simnic.Objects{}) {
		return fmt.Errorf("objects of the NIC are left: %+v", o)
	}
	if n := s.linux.Pinned(); n != 0 {
		return fmt.Errorf("%d bytes are still pinned", n)
	}
	return nil
}

// restore gives the device back.
func (s *slot) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = false
	s.nic.RestoreDevice()
}

// replace puts another card in where one is away.
func (h *ourHost) replace(card string) error {
	old := h.slot.card()
	err := old.Close()
	wire := old.Counters().Wire
	err = errors.Join(err, h.insert(card))
	h.slot.mu.Lock()
	defer h.slot.mu.Unlock()
	h.slot.away = false
	h.slot.sent, h.slot.got = h.slot.sent+wire.TxPackets, h.slot.got+wire.RxPackets
	return err
}

// left reports what is left after the host has gone down. late: the driver may have found a queue
// in a state that it did not expect.
func (s *slot) left(late bool) error {
	if err := s.empty(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.linux.Refused(); n != 0 && !late {
		return fmt.Errorf("the firmware refused %d changes of queues' states", n)
	}
	return nil
}
