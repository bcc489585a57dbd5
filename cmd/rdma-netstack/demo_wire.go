package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
)

// frameMonitor sends raw frames from "outside" and records the frames that return there and those
// that reach "host". A burst is followed by an echo request to each owner of the port: when both
// have answered, all earlier frames have been processed.
type frameMonitor struct {
	w             *world
	outside, host *lab.Port
	id, seq       uint16
	buf           []byte
	// sequence numbers of the echo requests that follow bursts; on a bad wire answers may be late
	// and duplicated
	pings map[uint16]bool

	// that came back outside since the last burst, except those to our echo requests
	answers []probe.Frame
	onHost  []probe.Frame // that reached "host" since the last burst, likewise
	asked   uint64        // echo requests sent to the slice since the last burst
}

func (w *world) newFrameMonitor() (*frameMonitor, error) {
	t := &frameMonitor{
		w:     w,
		id:    uint16(time.Now().UnixNano()) | 1,
		buf:   make([]byte, 64<<10),
		pings: map[uint16]bool{},
	}
	open := func(at *lab.Net, port **lab.Port) error {
		return at.Do(func() (err error) { *port, err = lab.OpenPort(demoPort); return err })
	}
	if err := open(w.outside, &t.outside); err != nil {
		return nil, err
	}
	if err := open(w.host, &t.host); err != nil {
		return nil, errors.Join(err, t.outside.Close())
	}
	return t, nil
}

func (t *frameMonitor) close() { t.outside.Close(); t.host.Close() }

// echo makes an echo request of the client to an IP address whose owner may differ from the MAC's.
func (t *frameMonitor) echo(mac net.HardwareAddr, to netip.Addr) []byte {
	t.seq++
	return probe.EchoFrame(mac, t.w.client.mac, t.w.client.v4.Addr(), to, t.id, t.seq)
}

// burst sends the frames and returns when both owners have processed all that reached them.
func (t *frameMonitor) burst(ctx context.Context, frames ...[]byte) error {
	t.answers, t.onHost, t.asked = nil, nil, 0
	for _, f := range frames {
		if err := t.outside.Send(f); err != nil {
			return fmt.Errorf("send a raw frame: %w", err)
		}
	}
	if err := t.barrier(ctx, t.w.slice, false); err != nil {
		return err
	}
	return t.barrier(ctx, t.w.netdev, true)
}

// barrier pings the party until it answers, and records all other frames meanwhile.
func (t *frameMonitor) barrier(ctx context.Context, to station, onHost bool) error {
	for ctx.Err() == nil {
		ping := t.echo(to.mac, to.v4.Addr())
		t.pings[t.seq] = true
		if !onHost {
			t.asked++
		}
		if err := t.outside.Send(ping); err != nil {
			return fmt.Errorf("send a raw frame: %w", err)
		}
		mine := func(s probe.Frame) bool { return s.ID == t.id && s.Seq == t.seq }
		seen := true
		if onHost {
			seen = t.watch(t.host, &t.onHost,
				func(s probe.Frame) bool { return s.EchoRequest && mine(s) })
		}
		if t.watch(t.outside, &t.answers,
			func(s probe.Frame) bool { return s.EchoReply && mine(s) }) &&
			seen {
			return nil
		}
	}
	return fmt.Errorf("no answer from %s to an echo request in a raw frame: %w", to.name, ctx.Err())
}

// watch records what a port receives until the expected frame, and reports whether that arrived.
func (t *frameMonitor) watch(
	port *lab.Port,
	into *[]probe.Frame,
	last func(probe.Frame) bool,
) bool {
	deadline := time.Now().Add(time.Second)
	for {
		frame, err := port.Recv(t.buf, deadline)
		if err != nil {
			return false
		}
		s := probe.ParseFrame(frame)
		if last(s) {
			return true
		}
		*into = append(*into, s)
	}
}

// count returns the number of the frames that match.
func count(all []probe.Frame, wanted func(probe.Frame) bool) (n int) {
	for _, s := range all {
		if wanted(s) {
			n++
		}
	}
	return n
}

func sameMAC(a, b net.HardwareAddr) bool { return bytes.Equal(a, b) }
