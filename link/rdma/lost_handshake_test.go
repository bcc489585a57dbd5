package rdma

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/rdma-netstack/rdma-netstack/link/rdma/internal/hdr"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// losing represents a wire that drops the frames for which lose returns true.
type losing struct {
	wire.Wire
	lose func(frame []byte) bool
}

func (w *losing) Send(frames []frame.Frame) (int, error) {
	for i := range frames {
		if w.lose(frames[i].Data) {
			continue
		}
		if n, err := w.Wire.Send(frames[i : i+1]); n == 0 || err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

// info reads the state of a stack's only TCP connection. Its RTT is 0 where nothing was measured:
// in netstack after a SYN-ACK that a timer sent again and an ACK of the same millisecond.
func (h *host) info(t *testing.T) (info tcpip.TCPInfoOption) {
	t.Helper()
	for _, e := range h.stack.RegisteredEndpoints() {
		ep, ok := e.(tcpip.Endpoint)
		if ok && tcp.EndpointState(ep.State()) == tcp.StateEstablished &&
			ep.GetSockOpt(&info) == nil {
			return info
		}
	}
	t.Fatal("no connection")
	return info
}

// attempts runs try up to five times, each with hosts of its own, until it succeeds. It is for
// tests that fail on a machine that stops for as long as netstack's timeouts, but not each time.
func attempts(t *testing.T, s setup, try func(t *testing.T, a, b *host) (complaint string)) {
	t.Helper()
	complaint := ""
	for i := range 5 {
		t.Run(fmt.Sprint("attempt ", i), func(t *testing.T) {
			a, b := pair(t, s)
			complaint = try(t, a, b)
		})
		if complaint == "" || t.Failed() {
			return
		}
	}
	t.Error(complaint)
}

// TestLostHandshake loses the first SYN, SYN-ACK or final ACK of a connection. The round trip time
// that both ends start with must not be that of netstack's retransmission, which is 1 s.
func TestLostHandshake(t *testing.T) {
	need.Long(t, "retransmission timeouts of 1 s")
	for _, tc := range []struct {
		name  string
		flags header.TCPFlags
	}{{"SYN", header.TCPFlagSyn}, {"SYN-ACK", header.TCPFlagSyn | header.TCPFlagAck},
		{"ACK", header.TCPFlagAck}} {
		t.Run(tc.name, func(t *testing.T) {
			var lost atomic.Bool
			lose := func(frame []byte) bool {
				l := parsed(frame)
				return l.Proto == hdr.ProtoTCP && l.L4 > 0 &&
					header.TCPFlags(frame[l.L4+13]) == tc.flags && lost.CompareAndSwap(false, true)
			}
			attempts(t, setup{lose: lose}, func(t *testing.T, a, b *host) string {
				ln := a.listen(t, a.v4, 80)
				lost.Store(false)
				b.dial(t, a.v4, 80)
				if _, err := ln.Accept(); err != nil {
					t.Fatal(err)
				}
				if n := a.ep.Stats().RxSYNRTTFixed + b.ep.Stats().RxSYNRTTFixed; n == 0 {
					t.Error("no timestamp changed")
				}
				if s, c := a.info(t).RTT, b.info(t).RTT; max(s, c) > 900*time.Millisecond {
					return fmt.Sprintf("round trip times %v and %v", s, c)
				}
				return ""
			})
		})
	}
}
