package stack_test

import (
	"errors"
	"fmt"
	"math"
	"net"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// TestPacingOptions: connections accepted have the rate of their listener, and dialled ones none;
// SetPacing changes it, and Close ends it.
func TestPacingOptions(t *testing.T) {
	for _, tt := range []struct{ listener, want uint64 }{
		{0, 0}, {1000, 1000}, {math.MaxUint64, 0},
	} {
		t.Run(fmt.Sprint(tt.listener), func(t *testing.T) {
			s, c := stacktest.Pair(t)
			lc := s.ListenConfig()
			lc.Pacing = tt.listener
			ln, err := lc.Listen(t.Context(), "tcp4", ":80")
			must(t, err)
			defer ln.Close()
			client, err := c.Dial("tcp4", stacktest.Used().ServerIP4.Addr().String()+":80")
			must(t, err)
			defer client.Close()
			accepted, err := ln.Accept()
			must(t, err)
			server := accepted.(*stack.TCPConn)
			if got := server.Settings().Pacing; got != tt.want {
				t.Errorf("%d bytes/s, want %d", got, tt.want)
			}
			if got := client.(*stack.TCPConn).Settings().Pacing; got != 0 {
				t.Errorf("the dialled end has %d bytes/s", got)
			}
			want := min(tt.want, 1)
			if got := s.Stats().TCPPaced; got != want {
				t.Errorf("%d connections with a rate, want %d", got, want)
			}
			must(t, server.SetPacing(5))
			must(t, server.SetPacing(7))
			must(t, server.Close())
			if got := s.Stats().TCPPaced; got != 0 {
				t.Errorf("%d connections with a rate after Close", got)
			}
			if err := server.SetPacing(1); !errors.Is(err, net.ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}
