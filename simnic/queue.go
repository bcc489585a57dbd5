package simnic

import (
	"errors"
	"fmt"
	"sync"
)

// State of a send or receive queue, in the numbers of the device.
type State uint8

// Queue states.
const (
	StateReset State = 0 // executes nothing; counters are 0 when the queue leaves it
	StateReady State = 1
	StateError State = 3 // every WQE is flushed
)

func (s State) String() string {
	switch s {
	case StateReset:
		return "RST"
	case StateReady:
		return "RDY"
	case StateError:
		return "ERR"
	}
	return "invalid"
}

// checkTransition refuses the transitions that the device refuses: a wrong current state, an
// unknown state, and ERR to RDY without RST between.
func checkTransition(kind string, number uint32, real, cur, next State) error {
	if cur != real {
		return statusErrorf(StatusBadState, "%s %#x is in state %v, not %v", kind, number, real,
			cur)
	}
	if next != StateReset && next != StateReady && next != StateError ||
		real == StateError && next == StateReady {
		return statusErrorf(StatusBadState, "%s %#x from state %v to %v", kind, number, real, next)
	}
	return nil
}

// checkRing refuses a ring that is not 1<<logEntries entries of entrySize bytes
// in memory, or a doorbell record that is not 8 aligned bytes.
func checkRing(kind string, ring, record *Memory, logEntries, maxLog, entrySize int) error {
	if logEntries < 0 || logEntries > maxLog {
		return statusErrorf(StatusBadParam, "%s of 2^%d entries (at most 2^%d)", kind, logEntries,
			maxLog)
	}
	need := uint64(entrySize) << logEntries
	if ring == nil || ring.Len() < need {
		return statusErrorf(StatusBadParam, "%s of 2^%d entries of %d bytes without memory for it",
			kind, logEntries, entrySize)
	}
	if record == nil || len(record.Slice(0, 8)) != 8 {
		return statusErrorf(StatusBadParam, "%s without a doorbell record of 8 bytes", kind)
	}
	return nil
}

// Hooks are called by the engines at each point where a fault can be injected. Each may be nil.
// They run with the queue's lock held and must not call the NIC.
type Hooks struct {
	// SendWQE is called before a send WQE is executed. A non-zero syndrome fails it with that error
	// completion.
	SendWQE func(sq *SQ, index uint16) (syndrome, vendor uint8)
	// Deliver is called before a frame goes into a receive queue: Starve treats the queue as empty;
	// a non-zero syndrome consumes a WQE with that error.
	Deliver func(rq *RQ) (starve bool, syndrome, vendor uint8)
	// Complete is called before a completion is written. Lose drops it; hold keeps it (and those
	// behind it) back until CQ.ReleaseHeld.
	Complete func(cq *CQ) (lose, hold bool)
	// Counter is called before a completion is written; true makes its wqe_counter wrong.
	Counter func(cq *CQ) (wrong bool)
	// Doorbell is called when a doorbell arrives; true loses it.
	Doorbell func(sq *SQ) (lose bool)
	// Hold is called before a send queue looks for WQEs to execute; true stops the queue until the
	// next call, at the next doorbell or link change. A queue without transport domain, which sends
	// no frames, is not asked.
	Hold func(sq *SQ) bool
}

// SetHooks installs h for all later events; nil removes it.
func (n *NIC) SetHooks(h *Hooks) { n.hooks.Store(h) }

// Status is the status of a control command, with the numbers of the device's command interface
// (MLX5_CMD_STAT_* in linux include/linux/mlx5/device.h).
type Status uint8

// Statuses that the core returns. Success is a nil error, not a Status.
const (
	StatusInternal   Status = 0x01 // the device failed
	StatusBadParam   Status = 0x03 // a value is outside what the device takes
	StatusBadSystem  Status = 0x04 // the device is in its fatal state
	StatusBadRes     Status = 0x05 // no such object
	StatusResBusy    Status = 0x06 // object is in use by another one
	StatusLimit      Status = 0x08 // no room for one more
	StatusBadState   Status = 0x09 // object is in another state than the command needs
	StatusNoResource Status = 0x0f // out of numbers or memory
)

var statusText = map[Status]string{
	StatusInternal:   "internal error",
	StatusBadParam:   "bad parameter",
	StatusBadSystem:  "bad system state",
	StatusBadRes:     "no such resource",
	StatusResBusy:    "resource busy",
	StatusLimit:      "limit exceeded",
	StatusBadState:   "bad resource state",
	StatusNoResource: "no resources",
}

// Error makes a Status usable with errors.Is: errors.Is(err, StatusResBusy).
func (s Status) Error() string {
	if t, ok := statusText[s]; ok {
		return fmt.Sprintf("%s (status %#02x)", t, uint8(s))
	}
	return fmt.Sprintf("status %#02x", uint8(s))
}

// StatusOf returns the device status inside err, StatusInternal if there is none.
func StatusOf(err error) Status {
	var s Status
	if errors.As(err, &s) {
		return s
	}
	return StatusInternal
}

// statusErrorf returns an error with the status s: what was refused and why.
func statusErrorf(s Status, format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), s)
}

// Named describes a counter with its name in ethtool -S or in sysfs hw_counters of linux mlx5.
type Named struct {
	Name  string
	Value uint64
}

// Linux lists the counters that linux mlx5 knows, by its names. Those of the port
// count bytes with FCS.
func (c Counters) Linux() []Named {
	w, d := &c.Wire, &c.Drops
	return []Named{
		{"rx_packets_phy", w.RxPackets},
		{"rx_bytes_phy", w.RxBytes + 4*w.RxPackets},
		{"tx_packets_phy", w.TxPackets},
		{"tx_bytes_phy", w.TxBytes + 4*w.TxPackets},
		{"rx_oversize_pkts_phy", d.WireOversize},
		{"rx_undersize_pkts_phy", d.WireRunt},
		{"rx_steer_missed_packets", d.SteerMissed},
		{"rx_vport_unicast_packets", w.RxUnicast},
		{"rx_vport_multicast_packets", w.RxMulticast},
		{"rx_vport_broadcast_packets", w.RxBroadcast},
		{"tx_vport_unicast_packets", c.Slice.TxUnicast + c.Netdev.TxUnicast},
		{"tx_vport_multicast_packets", c.Slice.TxMulticast + c.Netdev.TxMulticast},
		{"tx_vport_broadcast_packets", c.Slice.TxBroadcast + c.Netdev.TxBroadcast},
		{"out_of_buffer", d.OutOfBuffer},
		{"eth_wqe_too_small", d.TooLong},
		{"resp_local_length_error", d.LengthError},
		{"req_cqe_error", c.ReqErrors + c.ReqFlushed},
		{"req_cqe_flush_error", c.ReqFlushed},
		{"resp_cqe_error", c.RespErrors + c.RespFlushed},
		{"resp_cqe_flush_error", c.RespFlushed},
		{"cq_overrun", c.CQOverruns},
		{"rx_lro_packets", c.LROPackets},
	}
}

// pool keeps scratch memory between uses. Unlike sync.Pool it never loses any,
// so that a steady stream of frames allocates nothing.
type pool[T any] struct {
	mu   sync.Mutex
	free []*T
}

func (p *pool[T]) get() *T {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		t := p.free[n-1]
		p.free = p.free[:n-1]
		return t
	}
	return new(T)
}

func (p *pool[T]) put(t *T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, t)
}

// violations are mistakes of a driver that hardware ignores, or reports without an error
// completion.
type violations struct {
	mu       sync.Mutex
	count    uint64
	messages []string
}

// maxViolations gives the maximum number of messages stored; all violations are counted.
const maxViolations = 64

func (v *violations) addViolation(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count++
	if len(v.messages) < maxViolations {
		v.messages = append(v.messages, fmt.Sprintf(format, args...))
	}
}

// Violations returns the first 64 violations of rules without their own error completion, as text.
// It is empty for a correct driver.
func (n *NIC) Violations() []string {
	n.strict.mu.Lock()
	defer n.strict.mu.Unlock()
	return append([]string(nil), n.strict.messages...)
}
