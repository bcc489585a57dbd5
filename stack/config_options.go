package stack

import (
	"fmt"
	"net"
	"time"
)

// BufferRange bounds one direction's buffer of a TCP connection, in bytes of payload.
// Zero fields take the default named where the range is used.
type BufferRange struct {
	Min     int // what SetReadBuffer and SetWriteBuffer cannot go below
	Default int // where a new connection starts
	Max     int // how far automatic tuning and the setters can go
}

// TCPOptions are the options of TCP. The zero value is what measured best.
type TCPOptions struct {
	// CongestionControl is "cubic" (RFC 9438, the default) or "reno" (RFC 5681).
	CongestionControl string
	// DisableSACK turns selective acknowledgements (RFC 2018) off. Losing several segments of a
	// window then costs a round trip each.
	DisableSACK bool
	// DisableRACK turns time-based loss detection (RFC 8985) off and duplicate-ACK counting on.
	// Without RACK a path that reorders is up to five times slower.
	DisableRACK bool

	// SendBuffer limits unacknowledged data per connection. Default 4 KiB, 1 MiB, 6 MiB.
	SendBuffer BufferRange
	// ReceiveBuffer limits unread data per connection; its Max decides the window scale offered.
	// Default 4 KiB, 1 MiB, 8 MiB: 8 MiB carries 640 Mbit/s over 100 ms.
	ReceiveBuffer BufferRange
	// FixedReceiveBuffer stops receive buffers from growing with the measured rate.
	FixedReceiveBuffer bool

	// Backlog is that of listen(2) on Linux: as many established connections and one more wait for
	// Accept; further SYNs are dropped, so that clients retry. With as many handshakes under way,
	// SYN cookies are used. Default 2048: of
	// SYNs that nobody follows up, the stack then holds 20 MiB at most.
	Backlog int
	// AlwaysSYNCookies answers every SYN with a cookie: no state before the handshake is complete,
	// no TCP options beyond MSS.
	AlwaysSYNCookies bool

	// KeepAlive configures probes on accepted and dialled connections; zero fields mean 15 s idle,
	// 15 s between probes, 9 probes, as package net has it. Enable need not be set.
	KeepAlive net.KeepAliveConfig
	// DisableKeepAlive turns probes off.
	DisableKeepAlive bool

	// ACKDelay is how long an acknowledgement may wait for data to ride on (RFC 1122 section
	// 4.2.3.2): a server then sends one packet per request instead of two. Default that of
	// [rdma.ACKOptions], 5 ms, and 40 ms where data mostly comes later. Negative: every segment is
	// acknowledged at once, as netstack by itself does.
	ACKDelay time.Duration
	// MinRTO is the shortest retransmission timeout. Default 120 ms: longer than other systems
	// delay an acknowledgement at a short round trip (Linux and Windows 40 to 50 ms, BSDs 100 ms),
	// shorter than the 200 ms of Linux. Less than 10 ms is no shorter than that.
	MinRTO time.Duration
	// MaxRetries is how many timeouts in a row end a connection with ETIMEDOUT. Default 15.
	MaxRetries int
	// SYNRetries is how many times a SYN is repeated, with doubling intervals from 1 s, before a
	// dial fails with ETIMEDOUT: 1 to 6. Default 6 (127 s).
	SYNRetries int
	// TimeWait is how long the closing side keeps the port pair. Default 60 s.
	TimeWait time.Duration
	// FinTimeout is how long a connection closed by us waits for the peer's FIN. Default 60 s.
	FinTimeout time.Duration
	// OrphanTimeout is how long a closed connection keeps unsent data while the peer acknowledges
	// nothing, because it is silent or its window is zero; then it is reset. Default 100 s, the
	// time of Linux's tcp_orphan_retries of 8. A peer that acknowledges a little now and then has
	// this time in total, and a second more for each 4 KiB of the connection's send buffer.
	OrphanTimeout time.Duration
	// ReuseTimeWait lets a dial take over a port pair in TIME-WAIT that is older than 1 s, when
	// timestamps make that safe (RFC 6191). For clients that dial thousands of times a minute.
	ReuseTimeWait bool
}

// UDPOptions are the options of UDP.
type UDPOptions struct {
	// ReadBuffer is how many bytes of payload may wait to be read before datagrams are dropped.
	// Default 4 MiB: with 32 KiB nine of ten datagrams of a 64-byte burst are lost.
	ReadBuffer int
	// WriteBuffer bounds datagrams waiting for a neighbour's address. Default 4 MiB.
	WriteBuffer int
	// MaxBuffer is what SetReadBuffer and SetWriteBuffer can raise them to. Default 16 MiB.
	MaxBuffer int
}

const (
	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 15 * time.Second
	keepAliveCount    = 9
	maxACKDelay       = 400 * time.Millisecond
	defaultMinRTO     = 120 * time.Millisecond
	defaultBacklog    = 2048
	maxSYNRetries     = 6 // netstack gives up when the interval would exceed 120 s
	minBuffer         = 4 << 10
	defaultUDPBuffer  = 4 << 20
	defaultMaxBuffer  = 16 << 20
)

func (o TCPOptions) withDefaults() TCPOptions {
	if o.CongestionControl == "" {
		o.CongestionControl = "cubic"
	}
	o.SendBuffer = o.SendBuffer.or(BufferRange{minBuffer, 1 << 20, 6 << 20})
	o.ReceiveBuffer = o.ReceiveBuffer.or(BufferRange{minBuffer, 1 << 20, 8 << 20})
	o.Backlog = orDefault(o.Backlog, defaultBacklog)
	o.KeepAlive.Idle = orDefault(o.KeepAlive.Idle, keepAliveIdle)
	o.KeepAlive.Interval = orDefault(o.KeepAlive.Interval, keepAliveInterval)
	o.KeepAlive.Count = orDefault(o.KeepAlive.Count, keepAliveCount)
	o.KeepAlive.Enable = !o.DisableKeepAlive
	o.MinRTO = orDefault(o.MinRTO, defaultMinRTO)
	o.MaxRetries = orDefault(o.MaxRetries, 15)
	o.SYNRetries = orDefault(o.SYNRetries, maxSYNRetries)
	o.TimeWait = orDefault(o.TimeWait, 60*time.Second)
	o.FinTimeout = orDefault(o.FinTimeout, 60*time.Second)
	o.OrphanTimeout = orDefault(o.OrphanTimeout, 100*time.Second)
	return o
}

func (o UDPOptions) withDefaults() UDPOptions {
	o.ReadBuffer = orDefault(o.ReadBuffer, defaultUDPBuffer)
	o.WriteBuffer = orDefault(o.WriteBuffer, defaultUDPBuffer)
	o.MaxBuffer = orDefault(o.MaxBuffer, max(defaultMaxBuffer, o.ReadBuffer, o.WriteBuffer))
	return o
}

func (r BufferRange) or(d BufferRange) BufferRange {
	r.Max = orDefault(r.Max, max(d.Max, r.Default))
	r.Default = orDefault(r.Default, min(d.Default, r.Max))
	r.Min = orDefault(r.Min, min(d.Min, r.Default))
	return r
}

func orDefault[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

func (o TCPOptions) validate() error {
	if o.CongestionControl != "cubic" && o.CongestionControl != "reno" {
		return fmt.Errorf("congestion control %q is not supported; use \"cubic\" or \"reno\"",
			o.CongestionControl)
	}
	if err := o.SendBuffer.validate("TCP send buffer"); err != nil {
		return err
	}
	if err := o.ReceiveBuffer.validate("TCP receive buffer"); err != nil {
		return err
	}
	if o.Backlog < 0 {
		return fmt.Errorf("backlog %d is negative; use 0 for the default of %d",
			o.Backlog, defaultBacklog)
	}
	if o.ACKDelay > maxACKDelay {
		return fmt.Errorf("ACK delay %s is longer than TCP allows; give at most %s", o.ACKDelay,
			maxACKDelay)
	}
	if o.SYNRetries < 1 || o.SYNRetries > maxSYNRetries {
		return fmt.Errorf("SYN retries %d are outside 1..%d; use 0 for the default of %d",
			o.SYNRetries, maxSYNRetries, maxSYNRetries)
	}
	if o.MaxRetries < 0 || o.MinRTO < 0 || o.TimeWait < 0 ||
		o.FinTimeout < 0 || o.OrphanTimeout < 0 {
		return fmt.Errorf("TCP timers and retry counts cannot be negative; use 0 for the default")
	}
	return nil
}

func (r BufferRange) validate(what string) error {
	if r.Min < 1 || r.Default < r.Min || r.Max < r.Default {
		return fmt.Errorf("%s range %d, %d, %d is not ascending; "+
			"give Min <= Default <= Max in bytes", what, r.Min, r.Default, r.Max)
	}
	return nil
}

func (o UDPOptions) validate() error {
	return BufferRange{minBuffer, min(o.ReadBuffer, o.WriteBuffer),
		o.MaxBuffer}.validate("UDP buffer")
}
