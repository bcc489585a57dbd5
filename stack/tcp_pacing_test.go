package stack_test

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
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

// TestPacingRules: of the rules whose prefix holds a client's address that with the longest one
// counts, and without any the listener's rate; a prefix that is none is refused.
func TestPacingRules(t *testing.T) {
	p4, p6 := stacktest.Used().ClientIP4, stacktest.Used().ClientIP6
	whole := netip.PrefixFrom(p4.Addr(), p4.Addr().BitLen())
	mapped := netip.PrefixFrom(netip.AddrFrom16(p4.Addr().As16()), 96+p4.Bits())
	other := netip.MustParsePrefix("203.0.113.0/24")
	for _, tt := range []struct {
		name     string
		rules    []stack.PacingRule
		ip4, ip6 uint64
	}{
		{"no rule", nil, 1000, 1000},
		{"another's", []stack.PacingRule{{other, 5}}, 1000, 1000},
		{"both", []stack.PacingRule{{p4, 5}, {p6, 7}}, 5, 7},
		{"mapped", []stack.PacingRule{{mapped, 5}}, 5, 1000},
		{"all of IPv6", []stack.PacingRule{{netip.MustParsePrefix("::/0"), 5}}, 1000, 5},
		{"the longer first", []stack.PacingRule{{whole, 5}, {p4, 7}}, 5, 1000},
		{"the longer last", []stack.PacingRule{{p4, 7}, {whole, 5}}, 5, 1000},
		{"no limit", []stack.PacingRule{{p4, 0}, {p6, math.MaxUint64}}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := stacktest.Pair(t)
			lc := s.ListenConfig()
			lc.Pacing, lc.PacingRules = 1000, tt.rules
			for _, v := range []struct {
				network string
				at      netip.Addr
				want    uint64
			}{
				{"tcp4", stacktest.Used().ServerIP4.Addr(), tt.ip4},
				{"tcp6", stacktest.Used().ServerIP6.Addr(), tt.ip6},
				{"tcp", stacktest.Used().ServerIP4.Addr(), tt.ip4},
			} {
				ln, err := lc.Listen(t.Context(), v.network, ":80")
				must(t, err)
				client, err := c.Dial("tcp", netip.AddrPortFrom(v.at, 80).String())
				must(t, err)
				accepted, err := ln.Accept()
				must(t, err)
				if got := accepted.(*stack.TCPConn).Settings().Pacing; got != v.want {
					t.Errorf("%s: %d bytes/s, want %d", v.network, got, v.want)
				}
				must(t, errors.Join(client.Close(), accepted.Close(), ln.Close()))
			}
		})
	}
	s, _ := stacktest.Pair(t)
	lc := s.ListenConfig()
	lc.PacingRules = []stack.PacingRule{{other, 5}, {}}
	if ln, err := lc.Listen(t.Context(), "tcp", ":80"); err == nil ||
		!strings.Contains(err.Error(), "rule 1 of PacingRules") {
		t.Errorf("without a prefix: %v, %v", ln, err)
	}
}
