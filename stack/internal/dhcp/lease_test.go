package dhcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
)

// ackBytes is a DHCPACK (RFC 2131 section 2) that gives 192.0.2.50, with more options.
func ackBytes(options ...[]byte) []byte {
	m := make([]byte, 240)
	m[0], m[1], m[2] = 2, 1, 6
	copy(m[16:], []byte{192, 0, 2, 50})
	copy(m[28:], []byte{2, 0, 0, 0, 0, 0xa})
	copy(m[236:], []byte{99, 130, 83, 99})
	m = append(m, 53, 1, 5, 54, 4, 192, 0, 2, 1)
	return append(append(m, bytes.Join(options, nil)...), 255)
}

// seconds is an option of four bytes.
func seconds(code byte, n uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{code, 4}, n)
}

var mask24 = []byte{1, 4, 255, 255, 255, 0}

// TestLease4 parses what servers send, including invalid values.
func TestLease4(t *testing.T) {
	const minute = time.Minute
	hour := leaseTerms{30 * minute, 52*minute + 30*time.Second, 60 * minute}
	for _, c := range []struct {
		name    string
		options [][]byte
		terms   leaseTerms // the zero value: it is refused
		prefix  string
		router  string // of the default route; empty: none
		refused int
	}{
		{"plain", [][]byte{mask24, seconds(51, 3600), {3, 4, 192, 0, 2, 1}}, hour,
			"192.0.2.50/24", "192.0.2.1", 0},
		{"no time", [][]byte{mask24, seconds(51, 0)}, leaseTerms{minute, 105 * time.Second,
			2 * minute}, "192.0.2.50/24", "", 0},
		{"a second", [][]byte{mask24, seconds(51, 1)}, leaseTerms{minute, 105 * time.Second,
			2 * minute}, "192.0.2.50/24", "", 0},
		{"T1 of 0", [][]byte{mask24, seconds(51, 3600), seconds(58, 0)},
			hour, "192.0.2.50/24", "", 0},
		{"T1 of a second", [][]byte{mask24, seconds(51, 3600), seconds(58, 1)},
			leaseTerms{minute, minute + 59*minute*3/4, 60 * minute}, "192.0.2.50/24", "", 0},
		{"T1 after the end", [][]byte{mask24, seconds(51, 3600), seconds(58, 7200)},
			hour, "192.0.2.50/24", "", 0},
		{"T2 before T1", [][]byte{mask24, seconds(51, 3600), seconds(59, 1)},
			hour, "192.0.2.50/24", "", 0},
		{"T2 after the end", [][]byte{mask24, seconds(51, 3600), seconds(59, 1<<32-1)},
			hour, "192.0.2.50/24", "", 0},
		{"no mask: that of the class", [][]byte{seconds(51, 3600)}, hour, "192.0.2.50/24", "", 0},
		{"mask of /0", [][]byte{{1, 4, 0, 0, 0, 0}, seconds(51, 3600)}, leaseTerms{}, "", "", 0},
		{"mask with a hole", [][]byte{{1, 4, 255, 0, 255, 0}, seconds(51, 3600)}, leaseTerms{}, "",
			"", 0},
		{"mask cut short", [][]byte{{1, 2, 255, 255}, seconds(51, 3600)}, leaseTerms{}, "", "", 0},
		{"mask whose broadcast address it is",
			[][]byte{{1, 4, 255, 255, 255, 254}, seconds(51, 3600)}, hour, "192.0.2.50/31", "", 0},
		{"router is us", [][]byte{mask24, seconds(51, 3600), {3, 4, 192, 0, 2, 50}},
			hour, "192.0.2.50/24", "", 1},
		{"router elsewhere", [][]byte{mask24, seconds(51, 3600), {3, 4, 203, 0, 113, 1}},
			hour, "192.0.2.50/24", "", 1},
		{"route over us", [][]byte{mask24, seconds(51, 3600), {121, 6, 8, 10, 192, 0, 2, 50}},
			hour, "192.0.2.50/24", "", 1},
		{"router that a route puts on the link",
			[][]byte{{1, 4, 255, 255, 255, 255}, seconds(51, 3600),
				{121, 14, 32, 10, 0, 0, 1, 0, 0, 0, 0, 0, 10, 0, 0, 1}}, hour,
			"192.0.2.50/32", "10.0.0.1", 0},
		{"router of an address without a subnet", [][]byte{{1, 4, 255, 255, 255, 255},
			seconds(51, 3600), {3, 4, 10, 0, 0, 1}}, hour, "192.0.2.50/32", "10.0.0.1", 0},
		{"route of an address without a subnet", [][]byte{{1, 4, 255, 255, 255, 255},
			seconds(51, 3600), {121, 5, 0, 10, 0, 0, 1}}, hour, "192.0.2.50/32", "10.0.0.1", 0},
		{"router of an address without a subnet is us", [][]byte{{1, 4, 255, 255, 255, 255},
			seconds(51, 3600), {3, 4, 192, 0, 2, 50}}, hour, "192.0.2.50/32", "", 1},
		{"everything on the link does not bring a router near", [][]byte{mask24, seconds(51, 3600),
			{121, 10, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1}}, hour, "192.0.2.50/24", "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := dhcpv4.FromBytes(ackBytes(c.options...))
			must(t, err)
			asked := time.Now()
			l, err := parseLease4(m, asked, LeastRenewal)
			if c.prefix == "" {
				if !errors.Is(err, errBadLease) {
					t.Errorf("%v, want no lease", err)
				}
				return
			}
			must(t, err)
			got := leaseTerms{l.renew.Sub(asked), l.rebind.Sub(asked), l.ends.Sub(asked)}
			if got != c.terms || l.prefix.String() != c.prefix || len(l.refused) != c.refused {
				t.Errorf("%v for %v, refused %q; want %v for %v, %d refused", l.prefix, got,
					l.refused, c.prefix, c.terms, c.refused)
			}
			if router := defaultRouter(l.routes); router != c.router {
				t.Errorf("default router %q, want %q", router, c.router)
			}
		})
	}
}

func defaultRouter(routes []env.Route) string {
	for _, r := range routes {
		if r.Destination.Bits() == 0 && r.Gateway.IsValid() {
			return r.Gateway.String()
		}
	}
	return ""
}

// replyBytes is a DHCPv6 REPLY (RFC 8415 section 8) that gives 2001:db8::50 in an IA_NA.
func replyBytes(t1, t2, preferred, valid uint32) []byte {
	put := binary.BigEndian.AppendUint32
	addr := append([]byte{0, 5, 0, 24}, netip.MustParseAddr("2001:db8::50").AsSlice()...)
	addr = put(put(addr, preferred), valid)
	ia := put(put([]byte{0, 3, 0, 40, 0, 0, 0, 1}, t1), t2)
	m := []byte{7, 1, 2, 3, 0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 0xa, 0, 2, 0, 10, 0,
		3, 0, 1, 2, 0, 0, 0, 0, 0xb}
	return append(append(m, ia...), addr...)
}

// TestLease6 is TestLease4 for DHCPv6.
func TestLease6(t *testing.T) {
	const minute = time.Minute
	for _, c := range []struct {
		name                     string
		t1, t2, preferred, valid uint32
		terms                    leaseTerms // the zero value: it is refused
	}{
		{"plain", 1800, 2880, 3600, 7200, leaseTerms{30 * minute, 48 * minute, 120 * minute}},
		{"times of 0", 0, 0, 3600, 7200,
			leaseTerms{30 * minute, 97*minute + 30*time.Second, 120 * minute}},
		{"T1 of a second", 1, 2880, 3600, 7200, leaseTerms{minute, 48 * minute, 120 * minute}},
		{"a second in all", 0, 0, 1, 1, leaseTerms{minute, 105 * time.Second, 2 * minute}},
		{"not preferred", 0, 0, 0, 7200, leaseTerms{60 * minute, 105 * minute, 120 * minute}},
		{"T1 after the end", 9000, 9000, 3600, 7200,
			leaseTerms{60 * minute, 105 * minute, 120 * minute}},
		{"for ever", 1<<32 - 1, 1<<32 - 1, 1<<32 - 1, 1<<32 - 1,
			terms(0, 0, (1<<32-1)*time.Second, minute)},
		{"T1 after T2", 2880, 1800, 3600, 7200, leaseTerms{}},
		{"preferred for longer than valid", 0, 0, 7201, 7200, leaseTerms{}},
		{"not valid", 0, 0, 0, 0, leaseTerms{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := dhcpv6.MessageFromBytes(replyBytes(c.t1, c.t2, c.preferred, c.valid))
			must(t, err)
			asked := time.Now()
			l, err := parseLease6(m, asked, LeastRenewal)
			if c.terms == (leaseTerms{}) {
				if !errors.Is(err, errBadLease) {
					t.Errorf("%v, want no lease", err)
				}
				return
			}
			must(t, err)
			if got := (leaseTerms{l.renew.Sub(asked), l.rebind.Sub(asked),
				l.ends.Sub(asked)}); got != c.terms {
				t.Errorf("%v, want %v", got, c.terms)
			}
		})
	}
}

// TestSchedule: messages are repeated at growing intervals.
func TestSchedule(t *testing.T) {
	double, got := doubling(time.Second, 64*time.Second), []time.Duration{}
	for wait := double(0); len(got) < 8; wait = double(wait) {
		got = append(got, wait/time.Second)
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 64}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	half := halving(clock.Clock{}, time.Now().Add(time.Hour), time.Minute)(0)
	if half > 30*time.Minute || half < 29*time.Minute {
		t.Errorf("half an hour before the deadline: %v", half)
	}
	if last := halving(clock.Clock{}, time.Now(), time.Minute)(half); last != time.Minute {
		t.Errorf("at the deadline: %v", last)
	}
}

// FuzzLease4: whatever a server sends, an accepted lease can be kept.
func FuzzLease4(f *testing.F) {
	f.Add(ackBytes(mask24, seconds(51, 3600), seconds(58, 0), []byte{3, 4, 192, 0, 2, 1}))
	f.Add(ackBytes([]byte{1, 4, 255, 0, 255, 0},
		[]byte{121, 14, 32, 10, 0, 0, 1, 0, 0, 0, 0, 0, 10, 0, 0, 1}))
	f.Add(ackBytes(seconds(51, 0), []byte{6, 4, 192, 0, 2, 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := dhcpv4.FromBytes(b)
		if err != nil {
			return
		}
		asked := time.Now()
		l, err := parseLease4(m, asked, LeastRenewal)
		if err != nil {
			return
		}
		checkLeaseTimes(t, asked, l.renew, l.rebind, l.ends)
		if env.CheckAddress(l.prefix) != nil || l.prefix.Bits() < 1 ||
			len(l.routes) > maxLeaseRoutes ||
			len(l.dns) > maxLeaseServers {
			t.Errorf("%v, %d routes, %d resolvers", l.prefix, len(l.routes), len(l.dns))
		}
		for _, r := range l.routes {
			if r.Gateway == l.prefix.Addr() || !r.Destination.IsValid() {
				t.Errorf("route %v", r)
			}
		}
	})
}

// FuzzLease6 is FuzzLease4 for DHCPv6.
func FuzzLease6(f *testing.F) {
	f.Add(replyBytes(1800, 2880, 3600, 7200))
	f.Add(replyBytes(0, 0, 0, 1))
	f.Add(replyBytes(1<<32-1, 1<<32-1, 1<<32-1, 1<<32-1))
	f.Add([]byte("0000\x00\x03\x00(00000000\xff\xff\xff\xff\x00\x05\x00\x18" +
		"00000000000000000000\xff000")) // 136 years, T1 26 of them
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := dhcpv6.MessageFromBytes(b)
		if err != nil {
			return
		}
		asked := time.Now()
		l, err := parseLease6(m, asked, LeastRenewal)
		if err != nil {
			return
		}
		checkLeaseTimes(t, asked, l.renew, l.rebind, l.ends)
		if env.CheckAddress(l.prefix) != nil || len(l.dns) > maxLeaseServers {
			t.Errorf("%v, %d resolvers", l.prefix, len(l.dns))
		}
	})
}

// checkLeaseTimes checks that the times of a lease are in order and LeastRenewal apart from now.
func checkLeaseTimes(t *testing.T, asked, renew, rebind, ends time.Time) {
	t.Helper()
	if renew.Sub(asked) < LeastRenewal || !rebind.After(renew) || !ends.After(rebind) {
		t.Errorf("renewed after %v, rebound after %v, over after %v", renew.Sub(asked),
			rebind.Sub(asked), ends.Sub(asked))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
