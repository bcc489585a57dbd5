// Package webrtc opens data channels between pion's WebRTC on the stack, by contrib/pion, and
// pion's WebRTC on a kernel.
package webrtc

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/pion/ice/v4"
	"github.com/pion/webrtc/v4"

	"github.com/rdma-netstack/rdma-netstack/contrib/pion"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/tests/e2e/services/world"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/moving"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestDataChannel makes a peer on the stack and one on a kernel find each other by ICE, open a
// channel, and send a megabyte each way, over good and bad wires: who offers, which version of IP,
// and whether the stack's peer has a socket of its own or shares one by ICE's UDP mux.
func TestDataChannel(t *testing.T) {
	world.Module(t, "github.com/pion/webrtc/v4")
	world.Each(t, func(t *testing.T, w *world.World) {
		for _, c := range []struct {
			name      string
			network   webrtc.NetworkType
			answers   bool // the stack's peer does
			oneSocket bool
		}{
			{"the stack offers", webrtc.NetworkTypeUDP4, false, false},
			{"the kernel offers", webrtc.NetworkTypeUDP4, true, false},
			{"IPv6", webrtc.NetworkTypeUDP6, false, false},
			{"one socket for all peers", webrtc.NetworkTypeUDP4, true, true},
		} {
			t.Run(c.name, func(t *testing.T) {
				st := w.Server.(*stack.Stack)
				before := len(st.Sockets())
				ours := settingsFor(c.network)
				ours.SetNet(pion.New(st))
				if c.oneSocket {
					ours.SetICEUDPMux(newMux(t, st))
				}
				theirs := settingsFor(c.network)
				kernel, err := newKernelNet(w.Client)
				must(t, err)
				theirs.SetNet(kernel)
				a, b := newPeer(t, ours), newPeer(t, theirs)
				if c.answers {
					exchange(t, w.Moving(t, moving.Limit), b, a)
				} else {
					exchange(t, w.Moving(t, moving.Limit), a, b)
				}
				a.checkCandidates(t, addressesOf(st))
				b.checkCandidates(t, []string{world.Client4, world.Client6})
				a.closeAll(t)
				b.closeAll(t)
				if left := len(st.Sockets()) - before; left != 0 && !c.oneSocket {
					t.Errorf("%d sockets of the stack are left", left)
				}
			})
		}
	})
}

// settingsFor returns those that both peers have.
func settingsFor(network webrtc.NetworkType) *webrtc.SettingEngine {
	s := &webrtc.SettingEngine{}
	s.SetNetworkTypes([]webrtc.NetworkType{network})
	s.SetICEMulticastDNSMode(ice.MulticastDNSModeDisabled)
	return s
}

// newMux makes a socket of the stack that all peers share, which sends many packets at a time.
func newMux(t *testing.T, st *stack.Stack) ice.UDPMux {
	t.Helper()
	c, err := st.ListenUDP("udp4", &net.UDPAddr{Port: 3478})
	must(t, err)
	mux := ice.NewUDPMuxDefault(ice.UDPMuxParams{UDPConn: pion.NewBatchConn(c, pion.Batch{}),
		Net: pion.New(st)})
	t.Cleanup(func() { mux.Close() })
	return mux
}

func addressesOf(st *stack.Stack) (all []string) {
	for _, p := range st.Addrs() {
		all = append(all, p.Addr().WithZone("").String())
	}
	return all
}

// peer holds one end.
type peer struct {
	*webrtc.PeerConnection
	closing sync.Once
}

func newPeer(t *testing.T, s *webrtc.SettingEngine) *peer {
	t.Helper()
	c, err := webrtc.NewAPI(webrtc.WithSettingEngine(*s)).NewPeerConnection(webrtc.Configuration{})
	must(t, err)
	p := &peer{PeerConnection: c}
	t.Cleanup(func() { p.closeAll(t) })
	return p
}

// closeAll closes the connection, once.
func (p *peer) closeAll(t *testing.T) {
	t.Helper()
	p.closing.Do(func() {
		if err := p.GracefulClose(); err != nil {
			t.Errorf("close: %v", err)
		}
		if s := p.ConnectionState(); s != webrtc.PeerConnectionStateClosed {
			t.Errorf("closed: the connection is %v", s)
		}
	})
}

// describe sets a description that has all candidates, and returns it.
func (p *peer) describe(t *testing.T, ctx context.Context, d webrtc.SessionDescription,
) webrtc.SessionDescription {
	t.Helper()
	gathered := webrtc.GatheringCompletePromise(p.PeerConnection)
	must(t, p.SetLocalDescription(d))
	select {
	case <-gathered:
	case <-ctx.Done():
		t.Fatalf("candidates: %v", context.Cause(ctx))
	}
	return *p.LocalDescription()
}

// connect exchanges the descriptions.
func connect(t *testing.T, ctx context.Context, offers, answers *peer) {
	t.Helper()
	offer, err := offers.CreateOffer(nil)
	must(t, err)
	must(t, answers.SetRemoteDescription(offers.describe(t, ctx, offer)))
	answer, err := answers.CreateAnswer(nil)
	must(t, err)
	must(t, offers.SetRemoteDescription(answers.describe(t, ctx, answer)))
}

// The messages: 1 MiB, in parts that take several packets each.
const (
	messages    = 64
	messageSize = 16 << 10
)

// exchange makes one peer send messages over a channel, and the other send them back, and closes
// the channel.
func exchange(t *testing.T, ctx context.Context, offers, answers *peer) {
	t.Helper()
	closed := make(chan struct{})
	answers.OnDataChannel(func(c *webrtc.DataChannel) {
		c.OnMessage(func(m webrtc.DataChannelMessage) {
			if err := c.Send(m.Data); err != nil {
				t.Errorf("echo: %v", err)
			}
		})
		c.OnClose(func() { close(closed) })
	})
	c, err := offers.CreateDataChannel("echo", nil)
	must(t, err)
	opened, got := make(chan struct{}), make(chan []byte, messages)
	c.OnOpen(func() { close(opened) })
	c.OnMessage(func(m webrtc.DataChannelMessage) { got <- m.Data })
	connect(t, ctx, offers, answers)
	wait(t, ctx, opened, "the channel to open")
	random := rand.NewChaCha8([32]byte{3})
	var sent [messages][messageSize]byte
	for i := range sent {
		random.Read(sent[i][:])
		must(t, c.Send(sent[i][:]))
	}
	for i := range sent {
		if !bytes.Equal(wait(t, ctx, got, fmt.Sprintf("echo %d", i)), sent[i][:]) {
			t.Fatalf("echo %d is not what was sent", i)
		}
	}
	must(t, c.Close())
	wait(t, ctx, closed, "the channel to close at the other end")
}

// wait returns what comes from a channel, or its zero value once that is closed.
func wait[T any](t *testing.T, ctx context.Context, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-ctx.Done():
		t.Fatalf("waiting for %s: %v", what, context.Cause(ctx))
	}
	return v
}

// checkCandidates wants all candidates that the peer told, and the one that was chosen, to be
// addresses of its own.
func (p *peer) checkCandidates(t *testing.T, own []string) {
	t.Helper()
	isOwn := func(address string) bool {
		a, err := netip.ParseAddr(address)
		for _, o := range own {
			if err == nil && a.WithZone("").String() == o {
				return true
			}
		}
		return false
	}
	told := 0
	for line := range strings.Lines(p.LocalDescription().SDP) {
		// RFC 8839, 5.1: candidate:foundation component transport priority address port typ type
		words := strings.Fields(line)
		if !strings.HasPrefix(line, "a=candidate:") || len(words) < 8 {
			continue
		}
		if told++; !isOwn(words[4]) || words[7] != "host" {
			t.Errorf("candidate %q: want one of %v", line, own)
		}
	}
	if told == 0 {
		t.Error("no candidates")
	}
	chosen, err := p.SCTP().Transport().ICETransport().GetSelectedCandidatePair()
	must(t, err)
	if chosen == nil || !isOwn(chosen.Local.Address) {
		t.Errorf("chosen: %v, want one of %v", chosen, own)
	}
}
