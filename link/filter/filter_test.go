package filter

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/bpf"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// packet makes an IP packet without payload; of TCP and UDP kind is the flags, of ICMP the type.
func packet(src, dst string, proto, kind uint8, sport, dport uint16) []byte {
	from, to := netip.MustParseAddr(src), netip.MustParseAddr(dst)
	transport := make([]byte, 20)
	switch proto {
	case protoTCP, protoUDP:
		binary.BigEndian.PutUint16(transport, sport)
		binary.BigEndian.PutUint16(transport[2:], dport)
		transport[12], transport[13] = 5<<4, kind
	default:
		transport[0] = kind
		binary.BigEndian.PutUint16(transport[4:], sport)
	}
	if from.Is4() {
		ip := make([]byte, ipv4Len)
		ip[0], ip[8], ip[9] = 0x45, 64, proto
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(transport)))
		copy(ip[12:], from.AsSlice())
		copy(ip[16:], to.AsSlice())
		return append(ip, transport...)
	}
	ip := make([]byte, ipv6Len)
	ip[0], ip[6], ip[7] = 0x60, proto, 64
	binary.BigEndian.PutUint16(ip[4:], uint16(len(transport)))
	copy(ip[8:], from.AsSlice())
	copy(ip[24:], to.AsSlice())
	return append(ip, transport...)
}

// fragment makes an IPv4 packet one piece of several, or an IPv6 one.
func fragment(ip []byte, id uint16, offset int, more bool) []byte {
	word := uint16(offset)
	if ip[0]>>4 == 4 {
		if more {
			word |= moreBit
		}
		binary.BigEndian.PutUint16(ip[4:], id)
		binary.BigEndian.PutUint16(ip[6:], word)
		return ip
	}
	h := []byte{ip[6], 0, 0, 0, 0, 0, byte(id >> 8), byte(id)}
	word <<= 3
	if more {
		word |= 1
	}
	binary.BigEndian.PutUint16(h[2:], word)
	ip[6] = extFragment
	return append(append(append([]byte(nil), ip[:ipv6Len]...), h...), ip[ipv6Len:]...)
}

func newFilter(t testing.TB, text string) *Filter {
	t.Helper()
	l, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(l, clock.Clock{})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// receive says why f drops a packet.
func receive(f *Filter, ip []byte) string {
	var b Batch
	if !b.Begin(f) {
		return ""
	}
	defer b.End()
	return b.Receive(ip)
}

const sample = `
# what nft reads, too
define office = { 192.0.2.0/24, 198.51.100.7 }
table inet filter {
	set bad {
		type ipv4_addr; flags interval
		elements = { 203.0.113.0/24,
			10.9.8.1-10.9.8.20 }
	}
	chain input {
		type filter hook input priority filter; policy drop;
		ip saddr @bad drop comment "scanners; all of them"
		ip saddr $office tcp dport { ssh, 8000-8010 } accept
		tcp dport { 80, https } counter accept
		ip6 saddr 2001:db8::/32 udp dport != 53 accept
		icmp type { echo-request, 13 } accept
		icmpv6 type echo-request limit rate 2/minute burst 2 packets accept
	}
	chain output {
		type filter hook output priority filter; policy accept;
		ip daddr 169.254.169.254 tcp dport 80 drop
		udp sport 9999 drop
	}
}
`

// TestVerdicts judges packets by the sample, and names the rule.
func TestVerdicts(t *testing.T) {
	f := newFilter(t, sample)
	const us, us6 = "192.0.2.10", "2001:db8::10"
	for _, tt := range []struct {
		ip  []byte
		why string
	}{
		{packet("203.0.113.5", us, protoTCP, flagSYN, 4000, 80),
			"rule 1 of the filter's chain input drops it (line 12)"},
		{packet("10.9.8.20", us, protoTCP, flagSYN, 4000, 80), "rule 1"},
		{packet("10.9.8.21", us, protoTCP, flagSYN, 4000, 80), ""},
		{packet("192.0.2.77", us, protoTCP, flagSYN, 4000, 22), ""},
		{packet("192.0.2.77", us, protoTCP, flagSYN, 4000, 8010), ""},
		{packet("192.0.2.77", us, protoTCP, flagSYN, 4000, 8011), "policy"},
		{packet("198.51.100.8", us, protoTCP, flagSYN, 4000, 22), "policy"},
		{packet("198.51.100.8", us, protoTCP, flagACK, 4000, 443), ""},
		{packet("198.51.100.8", us, protoUDP, 0, 4000, 443), "policy"},
		{packet("2001:db8:1::1", us6, protoUDP, 0, 4000, 54), ""},
		{packet("2001:db8:1::1", us6, protoUDP, 0, 4000, 53), "policy"},
		{packet("2001:db9:1::1", us6, protoUDP, 0, 4000, 54), "policy"},
		{packet("198.51.100.8", us, protoICMP, 8, 0, 0), ""},
		{packet("198.51.100.8", us, protoICMP, 13, 0, 0), ""},
		{packet("198.51.100.8", us, protoICMP, 15, 0, 0), "policy"},
		{packet("2001:db9::1", us6, protoICMPv6, 128, 0, 0), ""},
		{packet("2001:db9::1", us6, protoICMPv6, 128, 0, 0), ""},
		{packet("2001:db9::1", us6, protoICMPv6, 128, 0, 0), "policy"}, // the limit
		{packet("fe80::1", us6, protoICMPv6, 135, 0, 0), ""},           // housekeeping
		{packet("192.0.2.1", us, protoUDP, 0, 67, 68), ""},
		{packet("192.0.2.1", us, protoUDP, 0, 68, 67), ""},
		{packet("192.0.2.1", us, protoUDP, 0, 66, 69), "policy"},
		{packet("192.0.2.1", us, protoUDP, 0, 67, 1026), "policy"},
		{packet("fe80::1", us6, protoUDP, 0, 547, 546), ""},
		{packet("fe80::1", us6, protoUDP, 0, 546, 547), ""},
		{packet("fe80::1", us6, protoUDP, 0, 545, 548), "policy"},
		{fragment(packet("198.51.100.8", us, protoTCP, flagACK, 4000, 443), 7, 0, true), ""},
		{fragment(packet("198.51.100.8", us, protoTCP, 0, 4000, 443), 7, 100, true), ""},
		{fragment(packet("198.51.100.8", us, protoTCP, 0, 4000, 443), 8, 100, true), "policy"},
	} {
		got := receive(f, tt.ip)
		if (got == "") != (tt.why == "") || !strings.Contains(got, tt.why) {
			t.Errorf("%x: %q, want %q", tt.ip, got, tt.why)
		}
	}
	for _, tt := range []struct {
		ip   []byte
		pass bool
	}{
		{packet(us, "169.254.169.254", protoTCP, flagSYN, 4000, 80), false},
		{packet(us, "169.254.169.254", protoTCP, flagACK, 4000, 80), true},
		{packet(us, "169.254.169.253", protoTCP, flagSYN, 4000, 80), true},
		{packet(us, "198.51.100.8", protoUDP, 0, 9999, 80), false},
	} {
		if got := f.Send(tt.ip); (got == "") != tt.pass {
			t.Errorf("%x is sent: %q", tt.ip, got)
		}
	}
	s := f.Status()
	if n := s.Chains[0].Rules[0].Packets; n != 2 {
		t.Errorf("rule 1 has counted %d packets, want 2", n)
	}
	want := `ip saddr @bad drop comment "scanners; all of them"`
	if got := s.Chains[0].Rules[0].Text; got != want {
		t.Errorf("rule 1 reads %s", got)
	}
}

// TestAnswers: what answers to something that this host has begun passes, and nothing else.
func TestAnswers(t *testing.T) {
	f := newFilter(t, "chain input { policy drop; tcp dport 443 accept; }")
	const us, other = "192.0.2.10", "198.51.100.8"
	quote := func(of []byte, kind uint8) []byte {
		return append(packet("203.0.113.1", us, protoICMP, kind, 0, 0)[:ipv4Len+8], of...)
	}
	check := func(what string, ip []byte, pass bool) {
		t.Helper()
		if why := receive(f, ip); (why == "") != pass {
			t.Errorf("%s: dropped: %q", what, why)
		}
	}
	synACK := packet(other, us, protoTCP, flagSYN|flagACK, 80, 40000)
	dial := packet(us, other, protoTCP, flagSYN, 40000, 80)
	check("a SYN-ACK nobody asked for", synACK, false)
	check("an error about nothing", quote(dial, 3), false)
	f.Send(dial)
	check("a SYN-ACK", synACK, true)
	check("a SYN in place of it", packet(other, us, protoTCP, flagSYN, 80, 40000), false)
	check("another port", packet(other, us, protoTCP, flagACK, 81, 40000), false)
	check("an error about the SYN", quote(dial, 3), true)
	check("an error that is none", quote(dial, 5), false)
	served := packet(us, other, protoTCP, flagACK, 443, 5000)
	check("an error about what is let in", quote(served, 3), true)
	check("an error about somebody else's", quote(packet("192.0.2.11", other, protoTCP, flagACK,
		443, 5000), 3), false)

	answer := packet(other, us, protoUDP, 0, 53, 50000)
	check("a datagram nobody asked for", answer, false)
	f.Send(packet(us, other, protoUDP, 0, 50000, 53))
	check("an answer", answer, true)
	check("its first fragment", fragment(answer, 9, 0, true), true)
	check("the next fragment", fragment(packet(other, us, protoUDP, 0, 1, 1), 9, 50, false), true)
	f.Send(packet(us, other, protoUDP, 0, 5353, 5353))
	check("an answer to a server", packet(other, us, protoUDP, 0, 5353, 5353), false)
	f.Send(packet(us, other, protoICMP, 8, 77, 0))
	check("an echo reply", packet(other, us, protoICMP, 0, 77, 0), true)
	check("another's echo reply", packet(other, us, protoICMP, 0, 78, 0), false)
	if n := f.Status().Flows; n != 4 { // with that of the fragments
		t.Errorf("%d flows are remembered, want 4", n)
	}
}

// TestEntries: of prefixes ahead of the list the longest decides, and they end.
func TestEntries(t *testing.T) {
	l, err := Parse("chain input { policy accept; tcp dport 25 drop; }")
	if err != nil {
		t.Fatal(err)
	}
	now := clocktest.New()
	f, err := New(l, now.Clock())
	if err != nil {
		t.Fatal(err)
	}
	const us = "192.0.2.10"
	passes := func(src string, port uint16) bool {
		return receive(f, packet(src, us, protoTCP, flagSYN, 4000, port)) == ""
	}
	prefix := netip.MustParsePrefix
	for _, p := range []string{"10.0.0.0/8", "10.1.2.0/24", "2001:db8::/32", "2001:db8::1:0/112"} {
		if err := f.Deny(prefix(p), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Allow(prefix("10.1.0.0/16"), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Allow(prefix("2001:db8::/64"), 0); err != nil {
		t.Fatal(err)
	}
	for src, want := range map[string]bool{"9.255.255.255": true, "10.0.0.0": false,
		"10.255.255.255": false, "11.0.0.0": true, "10.1.0.0": true, "10.1.255.255": true,
		"10.2.0.0": false, "10.1.2.0": false, "10.1.2.255": false, "10.1.3.0": true} {
		if got := passes(src, 80); got != want {
			t.Errorf("%s passes: %v", src, got)
		}
	}
	if !passes("10.1.0.1", 25) {
		t.Error("an allowed source is judged by the list")
	}
	for src, want := range map[string]bool{"2001:db7::1": true, "2001:db8:ffff::": false,
		"2001:db8::": true, "2001:db8::1:1": false, "2001:db8::2:1": true, "2001:db9::": true} {
		if got := receive(f, packet(src, "2001:db8::10", protoUDP, 0, 1, 2)) == ""; got != want {
			t.Errorf("%s passes: %v", src, got)
		}
	}
	if !f.Forget(prefix("10.0.0.0/8")) || !passes("10.2.0.0", 80) ||
		f.Forget(prefix("10.0.0.0/8")) {
		t.Error("10.0.0.0/8 is not forgotten")
	}
	if err := f.Deny(prefix("10.2.0.0/16"), time.Minute); err != nil {
		t.Fatal(err)
	}
	now.Advance(59 * time.Second)
	if passes("10.2.0.0", 80) {
		t.Error("10.2.0.0/16 is not denied for a minute")
	}
	now.Advance(time.Second)
	if !passes("10.2.0.0", 80) {
		t.Error("10.2.0.0/16 is denied for longer than a minute")
	}
	if err := f.Load(nil); err != nil || passes("10.1.2.0", 80) || !passes("192.0.2.1", 25) {
		t.Error("without a list the entries do not hold")
	}
}

// TestParseErrors: each error names the line and says what to write.
func TestParseErrors(t *testing.T) {
	rule := func(text string) string { return "chain input {\n" + text + "\n}" }
	for text, want := range map[string]string{
		rule("ip saddr 1.2.3 drop"):                 `line 2: "1.2.3": want addresses such as 192.0.2.1`,
		rule("ip6 saddr 1.2.3.4 drop"):              "2001:db8::1",
		rule("\ntcp port 80 drop"):                  `line 3: "port": of ports there are sport and dport`,
		rule("tcp dport 80 reject"):                 `line 2: "reject": nothing is answered here: write drop`,
		rule("ct state new accept"):                 "pass by themselves, so leave such rules out",
		rule("iifname \"lo\" accept"):               "leave it out",
		rule("tcp dport 80"):                        "line 2: the line ends too early: want ip",
		rule("tcp dport { } drop"):                  "has no elements",
		rule("ip saddr @x drop"):                    `"@x" is not defined above`,
		rule("tcp dport 1 udp dport 1 drop"):        "never matches: write two rules",
		rule("ip saddr 1.2.3.4 ip6 daddr ::1 drop"): "never matches: write two rules",
		rule("th dport 53 drop"):                    "write meta l4proto { tcp, udp }",
		rule("tcp dport 80-70 drop"):                "want a number from 0 to 65535",
		rule("tcp dport 65536 drop"):                "want a number from 0 to 65535",
		rule("icmp type 256 drop"):                  "want a number from 0 to 255",
		rule("limit rate 10 accept"):                "want a rate such as 10/second",
		rule("drop drop"):                           "a rule ends with its verdict",
		rule("drop comment \"x"):                    "line 2: the closing quote is missing",
		rule("") + "\n" + rule(""):                  "there are two chains input",
		"chain input {\ntcp dport 80 drop":          "line 2: the text ends here: a closing }",
		"chain forward {\n}":                        "chains are input and output here",
		"table ip filter {\n}":                      "write table inet NAME",
		"hello":                                     `line 1: "hello": want chain input`,
	} {
		l, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "line ") {
			t.Errorf("%q: %v, %v; want %s", text, l, err, want)
		}
	}
}

// randomList writes a list of rules about few addresses, ports and types, so that they overlap.
func randomList(r *rand.Rand, rules int) string {
	var b strings.Builder
	address4 := func() string {
		a := fmt.Sprintf("10.%d.%d.%d", r.IntN(3), r.IntN(3), r.IntN(4))
		switch r.IntN(3) {
		case 0:
			return netip.MustParsePrefix(fmt.Sprintf("%s/%d", a, r.IntN(33))).Masked().String()
		case 1:
			return fmt.Sprintf("10.0.%d.%d-10.%d.2.3", r.IntN(3), r.IntN(4), 1+r.IntN(2))
		}
		return a
	}
	address6 := func() string {
		a := fmt.Sprintf("2001:db8:%d::%d:%d", r.IntN(3), r.IntN(2), r.IntN(4))
		switch r.IntN(3) {
		case 0:
			return netip.MustParsePrefix(fmt.Sprintf("%s/%d", a, r.IntN(129))).Masked().String()
		case 1:
			return fmt.Sprintf("2001:db8:0::%d-2001:db8:%d::1:1", r.IntN(4), 1+r.IntN(2))
		}
		return a
	}
	number := func(n int) func() string {
		return func() string {
			if a := r.IntN(n); r.IntN(3) == 0 {
				return fmt.Sprintf("%d-%d", a, a+1+r.IntN(n))
			} else {
				return fmt.Sprint(a)
			}
		}
	}
	set := func(one func() string) string {
		not := ""
		if r.IntN(4) == 0 {
			not = "!= "
		}
		if n := r.IntN(4); n > 0 {
			var list []string
			for range n {
				list = append(list, one())
			}
			return not + "{ " + strings.Join(list, ", ") + " }"
		}
		return not + one()
	}
	b.WriteString("table inet filter {\n")
	for d := range directions {
		fmt.Fprintf(&b, "chain %[1]s {\n\ttype filter hook %[1]s priority filter; policy %s;\n", d,
			Verdict(r.IntN(2)))
		for range r.IntN(rules + 1) {
			family := r.IntN(3)
			b.WriteString("\t")
			for _, side := range []string{"saddr", "daddr"} {
				if family > 0 && r.IntN(2) == 0 {
					name, one := "ip", address4
					if family == 2 {
						name, one = "ip6", address6
					}
					fmt.Fprintf(&b, "%s %s %s ", name, side, set(one))
				}
			}
			switch r.IntN(6) {
			case 0:
				fmt.Fprintf(&b, "tcp dport %s ", set(number(5)))
			case 1:
				from, to := set(number(5)), set(number(5))
				// nft 1.0.6 joins "sport != 1" and "dport != 2" into "not both"
				if strings.HasPrefix(from, "!=") {
					to = strings.TrimPrefix(to, "!= ")
				}
				fmt.Fprintf(&b, "udp sport %s udp dport %s ", from, to)
			case 2:
				fmt.Fprintf(&b, "meta l4proto { tcp, udp } th dport %s ", set(number(5)))
			case 3:
				fmt.Fprintf(&b, "meta l4proto %s ", set(number(20)))
			case 4:
				if family == 2 {
					fmt.Fprintf(&b, "icmpv6 type %s ", set(number(5)))
				} else {
					fmt.Fprintf(&b, "meta nfproto ipv4 icmp type %s ", set(number(5)))
				}
			}
			fmt.Fprintf(&b, "%s\n", Verdict(r.IntN(2)))
		}
		b.WriteString("}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// randomPacket makes a packet that rules of randomList may be about.
func randomPacket(r *rand.Rand) []byte {
	proto := []uint8{protoTCP, protoUDP, protoICMP, 3}[r.IntN(4)]
	address := func(v6 bool) string {
		if v6 {
			return fmt.Sprintf("2001:db8:%d::%d:%d", r.IntN(3), r.IntN(2), r.IntN(4))
		}
		return fmt.Sprintf("10.%d.%d.%d", r.IntN(3), r.IntN(3), r.IntN(4))
	}
	v6 := r.IntN(2) == 0
	if v6 && proto == protoICMP {
		proto = protoICMPv6
	}
	ip := packet(address(v6), address(v6), proto, uint8(r.IntN(6)), uint16(r.IntN(6)),
		uint16(r.IntN(6)))
	if r.IntN(8) == 0 {
		ip = fragment(ip, uint16(r.IntN(4)), r.IntN(2)*100, r.IntN(2) == 0)
	}
	return ip
}

// TestCompiled compares the compiled form with the rules one by one.
func TestCompiled(t *testing.T) {
	const lists, packets = 400, 250
	r := rand.New(rand.NewPCG(36, 1))
	dropped := 0
	for range lists {
		text := randomList(r, 30)
		l, err := Parse(text)
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		var programs [directions]*program
		for d := range directions {
			if programs[d], err = compile(d, &l.chains[d]); err != nil {
				t.Fatal(err)
			}
		}
		for range packets {
			ip := randomPacket(r)
			var p Packet
			if !p.Read(ip) {
				t.Fatalf("%x is not read", ip)
			}
			for d := range directions {
				want, number := l.Judge(d, &p)
				got, n := programs[d].judge(&p, nil)
				if got != want || int(n) != number {
					t.Fatalf("%s of %+v: %s by rule %d, want %s by rule %d of\n%s", d, p, got, n,
						want, number, text)
				}
				dropped += int(want)
			}
		}
	}
	if all := 2 * lists * packets; dropped < all/10 || dropped > all*9/10 {
		t.Errorf("of %d packets %d are dropped: the lists are about others", all, dropped)
	}
}

// TestIndex compares the index with a search from the start, for numbers in heaps and far apart.
func TestIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(36, 2))
	for turn := range 300 {
		values := []uint32{2, 4, 5, maxValue}[turn%4]
		starts := []start{{0, r.Uint32N(2)}}
		for n := r.IntN(200); len(starts) < n; {
			step := uint64(1 + r.IntN(3))
			if r.IntN(4) == 0 {
				step = r.Uint64() >> (r.IntN(40) + 8)
			}
			last := starts[len(starts)-1].at
			if last+step+1 <= last {
				break
			}
			starts = append(starts, start{last + step + 1,
				(starts[0].value + uint32(len(starts))) % values})
		}
		x := newIndex(starts, r.IntN(13))
		if turn%3 > 0 {
			x.addRuns()
		}
		var behind []uint64
		for i := range uint64(cellsInWord) {
			behind = append(behind, starts[len(starts)-1].at+i<<x.root.shift)
		}
		for i := range starts {
			s := starts[i].at
			for _, key := range append([]uint64{s, s + 1, s - 1, s ^ r.Uint64()>>r.IntN(64),
				math.MaxUint64, math.MaxUint64 - r.Uint64N(9)}, behind...) {
				want := uint32(len(starts) - 1)
				for want > 0 && starts[want].at > key {
					want--
				}
				for _, got := range []uint32{x.find(key), x.findFurther(key)} {
					if got != starts[want].value {
						t.Fatalf("%d at start %d: %d, want %d of %v", key, i, got,
							starts[want].value, starts)
					}
				}
			}
		}
	}
}

// FuzzParseFilter: what is read is compiled to the same verdicts; an error names a line.
func FuzzParseFilter(f *testing.F) {
	f.Add(sample, []byte{})
	r := rand.New(rand.NewPCG(36, 3))
	for range 20 {
		f.Add(randomList(r, 10), randomPacket(r))
	}
	f.Add(limited, syn("198.51.100.1"))
	f.Add("chain input { meter m size 9 { ip saddr and 255.0.0.0 limit rate 1/minute } accept; }",
		syn("198.51.100.1"))
	f.Add("define a = { 1.2.3.4 }\nset b { elements = { $a } }\nchain input { ip saddr @b drop }",
		packet("1.2.3.4", "1.2.3.5", protoUDP, 0, 1, 2))
	f.Fuzz(func(t *testing.T, text string, ip []byte) {
		l, err := Parse(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "line ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q", err)
			}
			return
		}
		for d := range directions {
			c, err := compile(d, &l.chains[d])
			var p Packet
			if err != nil || !p.Read(ip) {
				continue
			}
			want, number := l.Judge(d, &p)
			if got, n := c.judge(&p, nil); got != want || int(n) != number {
				t.Errorf("%s: %s by rule %d, want %s by rule %d", d, got, n, want, number)
			}
		}
		if g, err := New(l, clock.Clock{}); err == nil {
			receive(g, ip)
			g.Send(ip)
		}
	})
}

// manyPrefixes returns a list that denies so many prefixes of each version of IP.
func manyPrefixes(n int) string {
	r := rand.New(rand.NewPCG(36, 4))
	var b strings.Builder
	b.WriteString("chain input { policy drop; ")
	for family := range 2 {
		if n > 0 {
			b.WriteString([]string{"ip saddr {", "ip6 saddr {"}[family])
			for i := range n {
				if i > 0 {
					b.WriteString(", ")
				}
				if family == 0 {
					fmt.Fprintf(&b, "%d.%d.%d.0/24", 1+r.IntN(200), r.IntN(256), r.IntN(256))
				} else {
					fmt.Fprintf(&b, "2a%02x:%x:%x::/48", r.IntN(256), r.IntN(65536), r.IntN(65536))
				}
			}
			b.WriteString("} drop; ")
		}
	}
	b.WriteString("tcp dport { 80, 443 } accept; udp dport 53 accept; }")
	return b.String()
}

// BenchmarkReceive judges packets of random sources.
func BenchmarkReceive(b *testing.B) {
	for _, n := range []int{0, 10, 1000, 10_000, 100_000} {
		f := newFilter(b, manyPrefixes(n))
		for _, v6 := range []bool{false, true} {
			r := rand.New(rand.NewPCG(36, 5))
			packets := make([][]byte, 4096)
			for i := range packets {
				src, dst := fmt.Sprintf("%d.%d.%d.9", 1+r.IntN(200), r.IntN(256),
					r.IntN(256)), "192.0.2.10"
				if v6 {
					src, dst = fmt.Sprintf("2a%02x:%x:%x::9", r.IntN(256), r.IntN(65536),
						r.IntN(65536)), "2001:db8::10"
				}
				packets[i] = packet(src, dst, protoTCP, flagACK, 4000, 443)
			}
			b.Run(fmt.Sprintf("prefixes=%d/v6=%v", n, v6), func(b *testing.B) {
				var batch Batch
				batch.Begin(f)
				defer batch.End()
				for i := range b.N {
					batch.Receive(packets[i&4095])
				}
			})
		}
	}
}

// BenchmarkBPF runs a program of classic BPF with as many steps as a search by halves takes among
// 10,000 prefixes: what the compiled form was chosen over.
func BenchmarkBPF(b *testing.B) {
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: 12, Size: 4}}
	for range 15 {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: 1 << 31,
			SkipTrue: 0, SkipFalse: 0})
	}
	vm, err := bpf.NewVM(append(program, bpf.RetConstant{Val: 1}))
	if err != nil {
		b.Fatal(err)
	}
	ip := packet("198.51.100.8", "192.0.2.10", protoTCP, flagACK, 4000, 443)
	for b.Loop() {
		if n, err := vm.Run(ip); n == 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}

// TestNoAllocation: judging a packet allocates nothing.
func TestNoAllocation(t *testing.T) {
	f := newFilter(t, sample)
	ip := packet("198.51.100.8", "192.0.2.10", protoTCP, flagACK, 4000, 443)
	out := packet("192.0.2.10", "198.51.100.8", protoTCP, flagACK, 443, 4000)
	var b Batch
	b.Begin(f)
	defer b.End()
	if n := testing.AllocsPerRun(1000, func() {
		b.Receive(ip)
		f.Send(out)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
